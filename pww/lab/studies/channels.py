"""Studies of what happens on the way: sparsifiers, quantisers, attackers; and a closed form."""

from math import inf

from pww.lab.studies.recipe import (
    Compared,
    ExcessRatio,
    Expected,
    Linear,
    Ordered,
    Recipe,
    RuleBeatsRival,
)

RATES = "lab.tune.lr=[1e-3,3e-3,1e-2,3e-2]"
KEEPS = (2048, 1024, 512, 256)

RANDOM_K = Recipe(
    name="randomk",
    about="Unbiased sparsification: loss above dense against 1 + omega, at one rate for all.",
    common=("lab.seeds=3", "method=diloco"),
    lines=(("codec=fp32",), ("codec=randomk", "codec.keep=2048,1024,512,256")),
    against="codec=fp32",
    expected=(
        Expected(
            "random-k: loss above dense is linear in 1 + omega, keep 1/2 to 1/16",
            "R² 0.999",
            Linear(
                base="codec=fp32",
                cells=tuple(f"codec=randomk,keep={keep}" for keep in KEEPS),
                at=tuple(4096 / keep for keep in KEEPS),
                least=0.99,
            ),
        ),
        Expected(
            "random-k: the fewer are kept, the higher the loss",
            "rises from keep 1/2 to 1/16",
            Ordered(("codec=fp32", *(f"codec=randomk,keep={keep}" for keep in KEEPS))),
        ),
    ),
)


def _topk(keep: int, feedback: bool) -> str:
    return f"codec=topk,bits=16,force=true,keep={keep},feedback={str(feedback).lower()}"


def _without_feedback(keep: int) -> Expected:
    return Expected(
        f"top-k 1/{4096 // keep}: without error feedback is worse than with it",
        "the residual is what makes top-k work",
        Ordered((_topk(keep, True), _topk(keep, False))),
    )


TOP_K = Recipe(
    name="topk",
    about="The largest values of every delta, averaged, with and without feedback, each tuned.",
    common=("lab.seeds=3", RATES, "method=local"),
    lines=(
        ("codec=fp32",),
        (
            "codec=topk", "codec.value_bits=16", "codec.force=true", "codec.keep=256,64,16",
            "codec.feedback=true,false",
        ),
        ("codec=topk", "codec.keep=64", "codec.value_bits=2"),
    ),
    against="codec=fp32",
    expected=(
        Expected(
            "top-k 1/16 with error feedback is within noise of dense",
            "within noise",
            Compared("loss_difference", _topk(256, True), -0.03, 0.03, "codec=fp32"),
        ),
        Expected(
            "top-k 1/64 with error feedback",
            "+0.043 nats",
            Compared("loss_difference", _topk(64, True), 0.0, 0.121, "codec=fp32"),
        ),
        Expected(
            "top-k 1/256 with error feedback",
            "+0.121 nats",
            Compared("loss_difference", _topk(16, True), 0.043, inf, "codec=fp32"),
        ),
        Expected(
            "1/64 of the values in 2 bits, with error feedback",
            "competitive",
            Compared("loss_ratio", "codec=topk,keep=64,bits=2", 0.97, 1.03, "codec=fp32"),
        ),
        *(_without_feedback(keep) for keep in (256, 64, 16)),
    ),
)  # fmt: skip

MOMENTUM = Recipe(
    name="momentum",
    about="Error feedback of few values under an outer momentum, against averaging, each tuned.",
    common=("lab.seeds=3", "lab.steps=500", RATES, "method=local,diloco"),
    lines=(("codec=fp32",), ("codec=topk", "codec.keep=64", "codec.force=true")),
    against="codec=fp32,method=local",
    expected=(
        Expected(
            "top-k 1/64 with error feedback: Nesterov (.7, .9) goes wrong where averaging does not",
            "closed form 6 has a limit of the step; a held momentum makes 0.7 a step of 7",
            Compared(
                "loss_difference", "codec=topk,force=true,keep=64,method=diloco", 0.5, inf,
                "codec=topk,force=true,keep=64,method=local",
            ),
        ),
        Expected(
            "without a codec the same momentum trains",
            "DiLoCo's paper",
            Compared(
                "loss_difference", "codec=fp32,method=diloco", -inf, 0.1, "codec=fp32,method=local"
            ),
        ),
    ),
)  # fmt: skip


def _bits(codec: str, feedback: bool) -> str:
    return f"codec={codec},feedback={str(feedback).lower()}"


QUANTISERS = Recipe(
    name="quantisers",
    about="Few bits for every value, with and without error feedback, each tuned.",
    common=("lab.seeds=3", RATES, "method=diloco"),
    lines=(
        ("codec=fp32",),
        ("codec=int8,int4", "codec.feedback=true,false"),
        ("codec=int2", "codec.force=true", "codec.feedback=true,false"),
        ("codec=sign", "codec.force=true", "codec.feedback=true,false"),
    ),
    against="codec=fp32",
    expected=(
        Expected(
            "int8 without error feedback is within noise of fp32",
            "no loss published",
            Compared("loss_ratio", _bits("int8", False), 0.99, 1.01, "codec=fp32"),
        ),
        Expected(
            "int4 without error feedback",
            "+0.09 %, as bf16",
            Compared("loss_ratio", _bits("int4", False), 0.99, 1.01, "codec=fp32"),
        ),
        Expected(
            "2 bits without error feedback cost",
            "+32 %",
            Compared("loss_ratio", "codec=int2,force=true,feedback=false", 1.01, inf, "codec=fp32"),
        ),
        Expected(
            "1 bit without error feedback costs more than 2 bits",
            "+83 % against +32 %",
            Ordered(
                ("codec=int2,force=true,feedback=false", "codec=sign,force=true,feedback=false")
            ),
        ),
        Expected(
            "2 bits: error feedback makes up for it",
            "competitive",
            Compared("loss_ratio", "codec=int2,force=true,feedback=true", 0.97, 1.03, "codec=fp32"),
        ),
    ),
)

COUNTS = "attack.workers=1,2,3,4,5,6,7,8"


def _attacked(merge: str, attackers: int, coordinated: bool) -> str:
    together = str(coordinated).lower()
    return (
        f"merge={merge},attack=noise,attack_scale=10,attackers={attackers},coordinated={together}"
    )


ATTACKS = Recipe(
    name="attacks",
    about="Median against mean, 1 to 8 of 16 workers sending noise ten times as long, at one rate.",
    common=("lab.seeds=3", "workers=16"),
    lines=(
        ("merge=mean,median",),
        (
            "merge=mean,median", "attack=noise", "attack.scale=10", COUNTS,
            "attack.coordinated=false,true",
        ),
    ),
    against="merge=median",
    expected=(
        Expected(
            "median: one attacker is at the noise floor",
            "at the noise floor",
            Compared(
                "loss_difference", _attacked("median", 1, True), -0.03, 0.03, "merge=median"
            ),
        ),
        Expected(
            "median: four coordinated attackers against four independent ones, loss above none",
            "2.5 to 5 times",
            ExcessRatio(
                cell=_attacked("median", 4, True),
                base="merge=median",
                against=_attacked("median", 4, False),
                against_base="merge=median",
                low=2.5,
                high=5.0,
            ),
            "figure",
        ),
        Expected(
            "median: breaks down with 8 coordinated attackers of 16",
            "diverges",
            Compared("loss_difference", _attacked("median", 8, True), 0.5, inf, "merge=median"),
        ),
        Expected(
            "four coordinated attackers: the median withstands what the mean does not",
            "the mean moves by the share of attackers times what they send",
            Ordered((_attacked("median", 4, True), _attacked("mean", 4, True))),
        ),
    ),
)  # fmt: skip

FLOOR = Recipe(
    name="floor",
    about="The noisy quadratic's stationary loss against the closed form of local SGD.",
    common=(
        "task=quadratic", "task.curvature=[1.0,0.3]", "workers=3", "method=local", "optim=sgd",
        "optim.lr=0.4", "lab.seeds=5", "lab.steps=4000",
    ),
    lines=(("diloco.inner_steps=5", "diloco.outer.lr=0.8,1.0"), ("diloco.inner_steps=1,20",)),
    against="H=5,outer_lr=1",
    expected=(
        Expected(
            "alpha = .8, H = 5",
            "0.05518",
            Compared("loss", "H=5,outer_lr=0.8", 0.05518 * 0.97, 0.05518 * 1.03),
            "figure",
        ),
        *(
            Expected(
                f"alpha = 1, {cell.partition(',')[0]}: the same floor whatever H",
                "0.07713",
                Compared("loss", cell, 0.07713 * 0.97, 0.07713 * 1.03),
                "figure",
            )
            for cell in ("H=1", "H=5,outer_lr=1", "H=20")
        ),
    ),
)  # fmt: skip

COMPOSITION = Recipe(
    name="composition",
    about="Unbiased sparsification times the sync interval: does what it costs scale with H?",
    common=("lab.seeds=3", "lab.steps=1920", "method=diloco", "diloco.inner_steps=4,8,16,32,64"),
    lines=(("codec=fp32",), ("codec=randomk", "codec.keep=2048,1024,512,256")),
    against="codec=fp32,H=16",
    expected=(
        Expected(
            "loss = L0 + a omega (H/16)^b foretells held-out cells better than its rival",
            "0.91 % against 1.72 %, better in 288 of 300 splits",
            RuleBeatsRival(),
        ),
    ),
)

RECIPES = (RANDOM_K, COMPOSITION, TOP_K, MOMENTUM, QUANTISERS, ATTACKS, FLOOR)
