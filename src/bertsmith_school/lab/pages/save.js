// Saves what a button stands below: a table or bars as CSV, a picture as PNG. Plotly's figures bring a button themselves.
document.addEventListener("click", event => {
  const button = event.target.closest?.("[data-save]");
  if (!button) return;
  const shown = button.parentElement, name = button.dataset.save || document.title;
  const picture = shown.querySelector("img");
  if (picture) drawn(picture).toBlob(png => save(png, `${name}.png`));
  // 开头的 BOM：没有它，Excel 会把中文认成乱码
  else save(new Blob(["\ufeff", csv(shown)], { type: "text/csv" }), `${name}.csv`);
});

function csv(shown) {
  const quoted = cell => `"${cell.textContent.replaceAll('"', '""')}"`;
  const rows = [...shown.querySelectorAll("tr, .bar")];
  return rows.map(row => [...row.querySelectorAll("th, td, .name, .value")].map(quoted).join(",") + "\r\n").join("");
}

function drawn(picture) {
  const canvas = document.createElement("canvas"), scale = 2;
  canvas.width = scale * picture.naturalWidth;
  canvas.height = scale * picture.naturalHeight;
  const context = canvas.getContext("2d");
  // 图随系统的深浅换颜色，底色也要一起存下
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
