"""`{{ number|count }}`: 1,234,567."""

from __future__ import annotations

from django import template

from delayedq.admin.charts import count

register = template.Library()
register.filter("count", count)
