"""`python -m pww.export RUN`: a run's theta_outer as a folder that `transformers` or torch loads.

    python -m pww.export outputs/RUN               the newest theta of a central, or of a run that
                                                   trained alone; at any time
    python -m pww.export outputs/RUN out=FOLDER    into this folder

RUN/final holds it after the end of a central's run (it has exported by then); before that, and of a
run that trained alone, it goes to RUN/export.
The folder gets config.json, model.safetensors (fp32) and tokenizer.json:

    AutoModelForCausalLM.from_pretrained(FOLDER)

Of a ResNet it is model.safetensors alone: parameters and running statistics under torchvision's
names, for load_state_dict of a network with the same stem.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pww.config import paths
from pww.config.schema import ImageModel, Images
from pww.errors import ConfigError, PwwError

if TYPE_CHECKING:
    from pww.central.exporting import Chosen


def main(argv: list[str]) -> int:
    """Exports one run; returns the exit code."""
    if not argv or any(word in ("-h", "--help") for word in argv):
        print(__doc__)
        return 0 if argv else 2
    try:
        run, out = _read(argv)
        from pww import log
        from pww.central.exporting import choose, export_decoder

        log.setup(label="export")
        chosen = choose(run, out)
        if isinstance(chosen.config.model, ImageModel):
            folder = _resnet(run, chosen)
        else:
            folder = export_decoder(chosen.config, chosen.generation, chosen.folder)
    except KeyboardInterrupt:
        print("stopped; the folder has no config.json, so nobody takes it for whole")
        return 130
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    print(f"export {paths.shown(folder)}")
    return 0


def _resnet(run: Path, chosen: "Chosen") -> Path:
    """Theta and the statistics that the checkpoint of its round has."""
    from pww.central.exporting_images import export_resnet
    from pww.data.images.gallery import scale_of
    from pww.replica.phases import inner_with
    from pww.trainer.stored_statistics import read_statistics

    config, generation = chosen.config, chosen.generation
    assert isinstance(config.data, Images)
    mean, std = scale_of(config.data)
    inner = inner_with(run, round_=generation.info.round)
    return export_resnet(
        generation, chosen.folder, name=config.model.name, statistics=read_statistics(inner),
        mean=mean, std=std,
    )  # fmt: skip


def _read(argv: list[str]) -> tuple[Path, Path | None]:
    """The run's folder and where to.

    Raises:
        ConfigError: every word that is not understood.
    """
    runs = [Path(word) for word in argv if "=" not in word]
    outs = [Path(word.removeprefix("out=")) for word in argv if word.startswith("out=")]
    unknown = [word for word in argv if "=" in word and not word.startswith("out=")]
    faults = [f"{word}: no such word; there are RUN and out=FOLDER" for word in unknown]
    if len(runs) != 1:
        faults.append(f"{len(runs)} run folders: name exactly one, such as outputs/RUN")
    if len(outs) > 1 or outs == [Path("")]:
        faults.append("out=: one folder")
    if faults:
        raise ConfigError(faults)
    return runs[0], outs[0] if outs else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
