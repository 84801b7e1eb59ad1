"""The page at `/docs`: every endpoint, its example, and a button to try it.

FastAPI's own page loads its script from a host on the internet; servers of private text often have none to load from,
and should run no script they did not ship. This page is self-contained: it reads `/openapi.json` from the same server
and calls nothing else, which its Content-Security-Policy enforces.
"""

from __future__ import annotations

import base64
import hashlib

from fastapi import Response

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --accent: #0a7a5a }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.05rem; margin-top: 2rem }
code, pre, textarea, input { font: 13px/1.5 ui-monospace, monospace }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0 }
summary { cursor: pointer; padding: .6rem .8rem } details > div { padding: 0 .8rem .8rem }
textarea { width: 100%; min-height: 8rem; box-sizing: border-box }
pre { background: var(--soft); border-radius: .4rem; padding: .6rem; overflow: auto; max-height: 24rem }
.method { display: inline-block; min-width: 3.2rem; font-weight: 600; color: var(--accent) }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .8rem .15rem 0; vertical-align: top }
button { padding: .35rem 1rem; margin: .4rem 0 } .quiet { opacity: .7 }
"""

_SCRIPT = """
const make = (tag, text, parent) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
};
const resolve = (document_, schema) => {
  if (!schema || !schema.$ref) return schema || {};
  return schema.$ref.slice(2).split('/').reduce((found, part) => found[part], document_);
};
const kind = (schema) => {
  if (schema.$ref) return schema.$ref.split('/').pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(' | ');
  if (schema.type === 'array') return 'list of ' + kind(schema.items || {});
  if (schema.enum) return schema.enum.join(' | ');
  return schema.const || schema.type || 'anything';
};
const fields = (schema, needed, parent) => {
  const table = make('table', undefined, parent);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = make('tr', undefined, table);
    make('code', name, make('td', undefined, row));
    make('td', kind(field) + (needed.includes(name) ? '' : ', optional'), row);
    make('td', field.description || '', row);
  }
};
const send = async (method, path, body, output) => {
  output.textContent = '…';
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const key = document.getElementById('key').value;
  if (key) headers['Authorization'] = 'Bearer ' + key;
  const begun = performance.now();
  try {
    const answer = await fetch(path.slice(1), { method, headers, body });
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 1); } catch { /* the figures are plain text */ }
    const took = Math.round(performance.now() - begun);
    output.textContent = `${answer.status} in ${took} ms\\n${shown.slice(0, 20000)}`;
  } catch (error) { output.textContent = 'no answer: ' + error.message; }
};
const show = (document_) => {
  make('p', `version ${document_.info.version}`, document.getElementById('about'));
  const groups = {};
  for (const [path, methods] of Object.entries(document_.paths))
    for (const [method, operation] of Object.entries(methods))
      (groups[operation.tags?.[0] || 'other'] ||= []).push([method.toUpperCase(), path, operation]);
  const place = document.getElementById('endpoints');
  for (const [group, operations] of Object.entries(groups)) {
    make('h2', group, place);
    for (const [method, path, operation] of operations) {
      const box = make('details', undefined, place);
      const head = make('summary', undefined, box);
      make('span', method, head).className = 'method';
      make('code', path, head);
      make('span', '  ' + (operation.description || ''), head).className = 'quiet';
      const inside = make('div', undefined, box);
      const asked = operation.requestBody?.content?.['application/json']?.schema;
      let text;
      if (asked) {
        const forms = (asked.anyOf || [asked]).map((form) => resolve(document_, form));
        const schema = forms[0];
        for (const other of forms.slice(1)) make('p', 'also takes: ' + other.description, inside);
        fields(schema, schema.required || [], inside);
        text = make('textarea', undefined, inside);
        text.setAttribute('aria-label', 'body of ' + path);
        text.value = JSON.stringify(schema.examples?.[0] ?? {}, null, 1);
      }
      const button = make('button', 'Send', inside);
      const output = make('pre', '', inside);
      output.setAttribute('aria-live', 'polite');
      button.onclick = () => send(method, path, text?.value, output);
      const given = operation.responses?.['200']?.content?.['application/json']?.schema;
      const answer = resolve(document_, given?.anyOf ? given.anyOf[0] : given);
      if (answer.properties) {
        make('p', 'answer', inside).className = 'quiet';
        fields(answer, Object.keys(answer.properties), inside);
      }
    }
  }
};
fetch('openapi.json').then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById('about').textContent = 'openapi.json could not be read: ' + error.message;
});
"""

_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>bertsmith</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{_STYLE}</style></head><body>
<h1>bertsmith</h1><div id="about"><p class="quiet">The whole description, for tools:
<a href="openapi.json">openapi.json</a></p></div>
<p><label>API key, if the server wants one: <input id="key" type="password" autocomplete="off"></label></p>
<div id="endpoints"></div><script>{_SCRIPT}</script></body></html>
"""


def docs_page() -> Response:
    """Returns the page, with a policy that lets it run its own script and call its own server, nothing else."""
    policy = (
        f"default-src 'none'; script-src '{_digest(_SCRIPT)}'; style-src '{_digest(_STYLE)}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": policy})


def _digest(text: str) -> str:
    # 浏览器只执行摘要相符的脚本：即使有内容被注入页面也不会运行
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
