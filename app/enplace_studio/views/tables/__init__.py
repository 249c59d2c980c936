"""Ops, transfers and the contents of memory as tables, with sums."""

from enplace_studio.views.view import View

VIEW = View("tables", "Tables", "enplace_studio.views.tables.tables_view", keeps_docks=True)
