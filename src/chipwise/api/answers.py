"""Names that the commands need to print results; loaded on first use.

They are types of results, functions that make tables and pages, and lists of known names.

Commands import public functions from :mod:`chipwise.api`, and everything else from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.api.catalogue import ModelEntry, ModelOnDevice, model_names, weight_formats
    from chipwise.api.predictions import DeviceAnswer
    from chipwise.api.runs import compare_runs, run_folder
    from chipwise.api.whole_runs import law_of
    from chipwise.deploy.calibrate.efficiency import Efficiency
    from chipwise.deploy.graphs.inputs import parse_shapes, parse_values
    from chipwise.deploy.measure.store import MeasurementStore, Stored
    from chipwise.deploy.measure.sustained import Sustained
    from chipwise.deploy.serving.server import Server
    from chipwise.deploy.teach.machine import Taught
    from chipwise.deploy.teach.reading import map_of
    from chipwise.design.fleet import load_tests
    from chipwise.design.fleet.agent_loop import LoopCost, PartCost
    from chipwise.design.fleet.answer import FleetPlan
    from chipwise.design.fleet.bill import Bill, Month
    from chipwise.design.fleet.plan_page import write_plan_page, write_simulation
    from chipwise.design.fleet.simulating import Simulation
    from chipwise.design.limits import METRICS, Constraint
    from chipwise.design.models.compiling import USUAL_TRIALS, Race
    from chipwise.design.models.graph_files import GraphQuestion
    from chipwise.design.models.measuring import Fusions
    from chipwise.design.phases.one_model import TaskScore, TaskTrained, run_of
    from chipwise.design.phases.overview import Overview, overview_of, profile_of
    from chipwise.design.quantize.gguf_run import GgufMix, QuantisedGguf
    from chipwise.design.quantize.onnx_file import QuantisedFile
    from chipwise.design.report import two_runs, unmet
    from chipwise.design.report.facts import contenders, without_search
    from chipwise.design.report.tables import constraint_table, final_table
    from chipwise.design.run.folder import holds_run
    from chipwise.design.run.past import PastTraining, PastTrainings
    from chipwise.design.run.progress import UNITS, Observer, Status, amount_of, best_of, line_of, silent
    from chipwise.design.shrink.shrink_model import Shrunk
    from chipwise.design.strategies.algorithms import STRATEGIES, strategy_info
    from chipwise.hardware import datasheet, taught
    from chipwise.hardware.datasheet import DeviceProfile
    from chipwise.hardware.device import CheckError, label_of
    from chipwise.hardware.facts import Fact
    from chipwise.hardware.runtime import RUNTIMES
    from chipwise.hardware.taught import Teaching
    from chipwise.model.published import alike, families
    from chipwise.model.space.count import show_size
    from chipwise.predict.cost.model import Predicted, parameters_said, passes
    from chipwise.predict.cost.request import throughput
    from chipwise.predict.cost.whole_run import RunEstimate
    from chipwise.predict.explain import html
    from chipwise.predict.explain.advice import Advice
    from chipwise.predict.explain.comparison import Comparison, Winner
    from chipwise.predict.explain.explanation import SHOWN, Explanation, PhaseAnswer, to_data
    from chipwise.predict.explain.gains import leading
    from chipwise.predict.explain.notes import checkpointing_note
    from chipwise.predict.explain.wording import factor_text, gain_text, side_effects
    from chipwise.predict.graphs.explanation import GraphExplanation
    from chipwise.predict.load.outcome import MEASURES, STATISTICS
    from chipwise.predict.served.table import ALSO_ASKED, ANSWERED, ASKED
    from chipwise.predict.served.training_step import TrainingEstimate
    from chipwise.predict.whole_runs.law_for import makes_pictures
    from chipwise.training.evaluations.evaluate import TaskResult
    from chipwise.training.laws.laws import published_change
    from chipwise.training.loop.progress import TrainingProgress, Update

__getattr__, __dir__ = on_first_use(__name__, __file__)
