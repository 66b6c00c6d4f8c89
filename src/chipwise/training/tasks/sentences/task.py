"""Settings of the sentences task that need no data: a transformer classifies short texts."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.tables import FULL
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.one_pass import ACCURACY, LATENCY, LAW, defaults
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.references import STEP, alike, full_heads, widths_and_depths
from chipwise.training.tasks.sentences.sections import sections

HEAD_SIZES = (64, 32, 16)
ASPECT = (16, 64)  # width over depth: 64 in BERT-base and BERT-large, 16 to 64 in the small ones of Turc et al. 2019
LOAD = """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("winner", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("winner")
text = tokenizer("turn the light on", padding="max_length", truncation=True, return_tensors="pt")
logits = model(**text).logits"""


def bert_proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields classifiers with BERT's proportions, each as a mapping of choices to values.

    They have an embedding table of the model's width, heads that together are as wide as the model, and a GELU
    feed-forward of four times the width. Width and depth are up to 1.5 times the space's largest.
    """
    own = {"vocab_size": spec.kind.outputs, "table": FULL}
    for weights in spec.formats:
        for d_model, depth in widths_and_depths(spec, step=STEP, aspect=ASPECT):
            head_size = next(size for size in HEAD_SIZES if d_model % size == 0)
            layer = {**full_heads(d_model, head_size), "ffn": "gelu"}
            yield alike(layer, d_model, depth, head_size, weights) | own


SENTENCES = Task(
    name="sentences",
    forms=("classifier of texts",),
    metric=ACCURACY,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="texts",
        entry=("text", "texts"),
        tokens="words",
        latency="time per text",
        curve="nats per text",
        verb="classifies texts",
        reference="classifier in the proportions of BERT",
        load=LOAD,
    ),
    law=LAW,
    needs=Need(part="sentence", message="is missing; describe the texts: {size: 16, words: 110, classes: 12}"),
    defaults=defaults(ACCURACY, source="commands"),
    references=bert_proportions,
    family=lambda choices: 0,
    data="chipwise.training.tasks.sentences.data:SentencesData",
    report_sections=sections,
)
