"""The command line is frozen: a new command, argument or option is a decision, made here.

Most knobs belong into the configuration (pitstop.config.sections), where they are typed, checked
together and recorded. What is listed here is typed by hand every day.
"""

import typer.main

from pitstop.cli.main import app

FROZEN = """
--install-completion
--show-completion
--version
config
config check
config check --json
config check CONFIG
config check OVERRIDES
config import
config import --as
config import --json
config import --output
config import OLD
config show
config show --json
config show CONFIG
config show OVERRIDES
data
data check
data check --json
data check --sums
data check OVERRIDES
data check SOURCE
data make
data make bev
data make bev --json
data make bev --samples
data make bev --scenes
data make bev --seed
data make bev --size
data make bev ROOT
data make deblur
data make deblur --frames
data make deblur --json
data make deblur --seed
data make deblur --size
data make deblur --test-clips
data make deblur --train-clips
data make deblur ROOT
data make reid
data make reid --corrupt
data make reid --images
data make reid --json
data make reid --people
data make reid --seed
data make reid --size
data make reid ROOT
data pack
data pack --frames
data pack --json
data pack --output
data pack OVERRIDES
data pack SOURCE
data stats
data stats --json
data stats --ranks
data stats OVERRIDES
data stats SOURCE
demo
demo --bottleneck
demo --output
demo --steps
doctor
doctor --ablate
doctor --batch-size
doctor --detach
doctor --explain
doctor --fail-on
doctor --format
doctor --json
doctor --lang
doctor --record
doctor --step
doctor --steps
doctor --time
doctor --unit
doctor --world-size
doctor TARGETS
eval
eval --checkpoint
eval --json
eval --pictures
eval --submit
eval --submit-as
eval --submit-top
eval CONFIG
eval OVERRIDES
explain
explain --json
explain --lang
explain CODE
export
export --json
export --mlflow
export --tensorboard
export --trace
export --wandb
export RUN
export-model
export-model --checkpoint
export-model --json
export-model --onnx
export-model --torch-export
export-model CONFIG
export-model OVERRIDES
infer
infer --checkpoint
infer --json
infer --output
infer CONFIG
infer OVERRIDES
machine
machine --data
machine --json
machine --quick
plan
plan --batch-size
plan --calibrate
plan --gpu
plan --gpu-memory
plan --host-memory
plan --json
plan --no-table
plan --optimizer
plan --precision
plan --ranks
plan --table
plan --what-if
plan OVERRIDES
plan TARGET
report
report --batch-size
report --format
report --json
report --lang
report --output
report --world-size
report -o
report SOURCES
train
train --resume
train --work-dir
train CONFIG
train OVERRIDES
tune
tune --allow-training
tune --exact-only
tune --json
tune --minutes
tune --on
tune --output
tune --page
tune --seconds
tune --steps
tune --trial-minutes
tune --trials
tune --turns
tune --work-dir
tune -o
tune CONFIG
tune OVERRIDES
verify
verify --check-steps
verify --json
verify --limit
verify --margin
verify --metric
verify --numbers-only
verify --seeds
verify --steps
verify --study
verify TARGETS
watch
watch --interval
watch --json
watch --once
watch --port
watch --wait
watch --web
watch RUN
"""


def spelled(command: object, *above: str) -> list[str]:
    """Every command, argument and option, as one would write it."""
    found = []
    for parameter in getattr(command, "params", ()):
        is_argument = parameter.param_type_name == "argument"
        names = [str(parameter.name).upper()] if is_argument else parameter.opts
        found += [" ".join((*above, name)) for name in (*names, *parameter.secondary_opts)]
    for name, inner in getattr(command, "commands", {}).items():
        found += [" ".join((*above, name)), *spelled(inner, *above, name)]
    return found


def test_the_command_line_is_the_one_decided_on() -> None:
    assert sorted(spelled(typer.main.get_command(app))) == FROZEN.strip().splitlines()


def test_every_command_and_option_says_what_it_does() -> None:
    def silent(command: object, *above: str) -> list[str]:
        found = [] if getattr(command, "help", None) else [" ".join(above)]
        found += [
            " ".join((*above, parameter.opts[0]))
            for parameter in getattr(command, "params", ())
            if parameter.param_type_name == "option" and not parameter.help
        ]
        for name, inner in getattr(command, "commands", {}).items():
            found += silent(inner, *above, name)
        return found

    assert silent(typer.main.get_command(app)) == []
