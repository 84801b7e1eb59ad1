"""Serving over HTTP: `app.build_app` makes the application, `run.serve` runs it.

A request is read by uvicorn's event loop, answered by an ordinary pipeline in a thread of its own (`admission`), and
computed together with whatever else is waiting by the one thread that runs models (`batching`).
"""
