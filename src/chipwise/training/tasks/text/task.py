"""Settings of the text task that need no data: a decoder continues text."""

from chipwise.training.laws import operators
from chipwise.training.laws.scaling import START
from chipwise.training.tasks.generation import LATENCY, beyond_context
from chipwise.training.tasks.metric import BITS_PER_BYTE
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.references import llama_proportions

TEXT = Task(
    name="text",
    forms=("decoder",),
    metric=BITS_PER_BYTE,
    latency_metric=LATENCY,
    labels=TaskLabels(),
    law=START,
    operators=operators.TEXT,
    needs=Need(departures=beyond_context),
    defaults={},
    references=llama_proportions,
    family=lambda choices: choices["vocab_size"],
    data="chipwise.training.tasks.text.data:TextData",
    report_sections=lambda samples: (),  # the report shows generated text elsewhere
)
