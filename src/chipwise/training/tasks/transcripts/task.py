"""Settings of the transcripts task that need no data: a transformer transcribes speech."""

from dataclasses import replace

from chipwise.model.kinds.sound.choices import NO_MODULE
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.one_pass import LATENCY, LAW, defaults
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.transcripts.references import proportions
from chipwise.training.tasks.transcripts.sections import sections

CER = Metric(name="cer", title="character error rate", unit="share", short="CER")
LOAD = """\
from transformers import AutoModelForCTC, Wav2Vec2CTCTokenizer

# input_features are log-mel spectrograms (clips, bands, frames) as front_end.json describes them
model = AutoModelForCTC.from_pretrained("winner", trust_remote_code=True)
tokenizer = Wav2Vec2CTCTokenizer.from_pretrained("winner")  # decodes model(...).logits.argmax(-1)"""
EXAMPLE = "{size: 320, classes: 21, stride: [2, 4], window: [global, local20], module: [none, conv15]}"

TRANSCRIPTS = Task(
    name="transcripts",
    forms=("transcriber",),
    metric=CER,
    latency_metric=LATENCY,
    labels=TaskLabels(
        data="spoken sentences",
        entry=("utterance", "utterances"),
        tokens="positions",
        latency="time per utterance",
        curve="nats per character",
        verb="transcribes speech",
        reference="encoder in the proportions of Whisper or Conformer",
        derived=("rtf",),
        load=LOAD,
    ),
    law=replace(LAW, floor=0.02),
    needs=Need(part="sound", message=f"is missing; describe the spectrograms with frames of 10 ms: {EXAMPLE}"),
    defaults=defaults(CER, source="espeak"),
    references=proportions,
    family=lambda choices: choices["module"] != NO_MODULE,  # the family: Conformer's or Whisper's proportions
    data="chipwise.training.tasks.transcripts.data:TranscriptsData",
    report_sections=sections,
)
