"""Time series: a decoder forecasts the next value; judged by the mean absolute scaled error."""
