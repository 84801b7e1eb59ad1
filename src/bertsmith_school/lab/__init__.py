"""The lab: looking inside models in the browser, everything on this machine."""

import os

# Gradio 在导入时就读这个变量：必须在导入之前关掉统计
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
