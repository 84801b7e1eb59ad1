"""Foreign formats: what others trained comes in here. Nothing else in the package imports from this room."""

from bertsmith.interop.convert import Imported, import_checkpoint

__all__ = ["Imported", "import_checkpoint"]
