"""The types of the configuration: what may be set, what a value may be, and what a cell's identity is.

Values stand in `conf/`, one YAML file per option; types stand here, one module per option or config group.
"""

from scalerlt.schema.cell import Cell, load_cell

__all__ = ["Cell", "load_cell"]
