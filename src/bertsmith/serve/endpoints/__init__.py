"""The endpoints of a server, a file each: what is asked, what is answered, and how a pipeline makes one of the other.

A file is found by being here; nothing lists it. Which pipelines an endpoint uses, the pipelines say (`endpoints` of
`bertsmith.inference.pipeline.Pipeline`), so that a new pipeline is served by naming its endpoint.
"""
