"""Tasks in one folder each: data, metric, reference designs, report sections, and evaluation of exported files."""
