"""Models in, torch dialect out: a decoder with its inputs told apart, its weights by name."""

from .decoder import Decoder, from_program
from .errors import FrontendError
from .importer import import_functions
from .lengths import Extent, Range
from .recognise import from_object, load_model
from .roles import CacheInput, Input, Role

__all__ = [
    "CacheInput",
    "Decoder",
    "Extent",
    "FrontendError",
    "Input",
    "Range",
    "Role",
    "from_object",
    "from_program",
    "import_functions",
    "load_model",
]
