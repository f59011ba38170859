"""What a round costs, measured: seconds of a verify by rows, batch and context, of a draft by length, batch and lag.

A verify is modelled as

    seconds = drift * (shape(batch, plain rows) + rows * (shape(batch, all rows) - shape(batch, plain rows)))
              + batch_cost * (batch - 1) + token_cost * tokens

The shape is a table of measurements, from start-up or from rounds as they come. The five numbers beside it are
fitted to the rounds: old rounds fade, and a round that lies far off counts little (Huber 1964), since on a shared
machine a step now and then takes many times its due. So a table that is wrong by a factor is put right within a few
rounds, and a table of the right form serves on a machine of any pace.

Nothing here knows about acceptance; `gamaneh.control.objective` puts the two together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

FADE = 0.9
"""Weight of an old step after one more step; half of it is gone after 7."""

DRAFT_FADE = 0.95
"""The same for drafts; half of it is gone after 14."""

TOLERANCE = 0.5
"""Relative deviation from which on a measurement pulls with constant force, however far off it lies: an outlier."""

POINT_STEP = 0.03
"""Share of a deviation by which one round moves the table at its size."""

ROW_FADE = 0.8
"""Weight of an old round for what additional rows cost. It fades in rounds with drafts only, as plain ones tell
nothing."""

ROW_DOUBT = 0.03
"""Seconds, in plain steps, of additional rows for which the table itself counts."""

FIRST_PLAIN = 1
"""Plain steps that are timed before the first draft: what was measured at start-up may be wrong."""

PLAIN_EVERY = 64
"""Rounds with drafts after which a plain step is timed."""

TOKENS_UNIT = 1024
SHOWN_LENGTHS = (1, 2, 4, 8)

RIDGE = (0.5, 2.0, 2.0)
"""Steps for which the assumption counts that nothing but the shape matters."""

ANCHOR_WEIGHT = 3
"""Measurements for which one of a draft from start-up stands, itself a median."""

SURPRISES = 3
"""Measurements in a row that are all above, or all below, what was expected by a factor of `SURPRISE`: that is no
accident, and what was learned before is scaled or forgotten."""

SURPRISE = 1.5

SHRINKAGE = 0.02
"""How strongly it is assumed, beside the drafts, that nothing but the draft length matters."""

READING_WINDOW = 9
"""Measurements of reading whose median counts: there is one per request at most."""

MUCH_TO_READ = 32
"""Tokens of each request from which on a draft shows what reading costs. What comes between two rounds is less."""

NEXT_TO_NOTHING = 1e-9
"""Least time that anything is taken to last, as ratios are formed."""


def trust(deviation: float) -> float:
    """Weight of a measurement that lies off by `deviation` of what was expected (Huber 1964)."""
    return min(1.0, TOLERANCE / deviation) if deviation > 0 else 1.0


class Shape:
    """Seconds by batch and token rows, with straight lines between measured cells.

    Beyond the measured rows of a batch the last slope goes on; a batch that was not measured lies between its
    neighbours, and is as the nearest one beyond them.
    """

    def __init__(self) -> None:
        self._lines: dict[int, tuple[list[int], list[float]]] = {}
        self._batches: list[int] = []
        self._found: dict[tuple[int, int], float] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def put(self, batch: int, rows: int, seconds: float) -> None:
        """Set one cell."""
        self._found.clear()
        sizes, values = self._lines.setdefault(batch, ([], []))
        at = bisect_left(sizes, rows)
        if at < len(sizes) and sizes[at] == rows:
            values[at] = seconds
            return
        sizes.insert(at, rows)
        values.insert(at, seconds)
        self._batches = sorted(self._lines)

    def points(self, batch: int = 1) -> dict[int, float]:
        """Seconds by rows of the measured line that `batch` lies on or above."""
        if not self._batches:
            return {}
        known = max((each for each in self._batches if each <= batch), default=self._batches[0])
        return dict(zip(*self._lines[known], strict=True))

    def move(self, batch: int, rows: int, change: float, least: float) -> None:
        """Change the seconds of a cell by `change`, to `least` at the least; a new cell begins on its line."""
        known = max((each for each in self._batches if each <= batch), default=self._batches[0])
        self.put(known, rows, max(self.seconds(known, rows) + change, least))

    def scale(self, factor: float) -> None:
        """Multiply all seconds."""
        self._found.clear()
        for _, values in self._lines.values():
            values[:] = [value * factor for value in values]

    def seconds(self, batch: int, rows: int) -> float:
        """Expected seconds.

        Raises:
            ValueError: nothing was measured.
        """
        found = self._found.get((batch, rows))
        if found is None:
            found = self._found[batch, rows] = self._interpolated(batch, rows)
        return found

    def _interpolated(self, batch: int, rows: int) -> float:
        batches = self._batches
        if not batches:
            raise ValueError("no measurement yet")
        at = bisect_left(batches, batch)
        if at == len(batches) or at == 0 or batches[at] == batch:
            return _on_line(*self._lines[batches[min(at, len(batches) - 1)]], rows)
        low, high = batches[at - 1], batches[at]
        below, above = _on_line(*self._lines[low], rows), _on_line(*self._lines[high], rows)
        return below + (above - below) * (batch - low) / (high - low)


def _on_line(sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
    """On straight lines through the points; before the first it stays, behind the last the slope goes on."""
    at = bisect_left(sizes, size)
    if at < len(sizes) and (sizes[at] == size or at == 0):
        return seconds[at]
    if len(sizes) == 1:
        return seconds[0]
    upper = min(at, len(sizes) - 1)
    slope = (seconds[upper] - seconds[upper - 1]) / (sizes[upper] - sizes[upper - 1])
    return seconds[upper - 1] + max(slope, 0.0) * (size - sizes[upper - 1])


def _alike(ratios: Sequence[float]) -> bool:
    """Whether all are surprises of one direction."""
    return all(ratio > SURPRISE for ratio in ratios) or all(ratio < 1 / SURPRISE for ratio in ratios)


class Coefficients:
    """Drift, batch cost and token cost: a ridge regression whose data fade, solved when it is asked for.

    Everything is relative to the shape, so that long and short steps count alike.
    """

    __slots__ = ("_gram", "_moment", "_solved", "_surprises")

    def __init__(self) -> None:
        self._surprises = 0
        self._gram = [0.0] * 6  # of the symmetric 3 x 3: 00 01 02 11 12 22
        self._moment = [0.0] * 3
        self._solved: tuple[float, float, float] | None = (1.0, 0.0, 0.0)

    def observe(self, features: tuple[float, float, float], ratio: float) -> None:
        """One step whose seconds were `ratio` times the shape's."""
        a, b, c = features
        drift, batch, tokens = self.values()
        expected = drift * a + batch * b + tokens * c
        weight = trust(abs(ratio - expected) / max(expected, 1.0))
        if self._surprised(ratio / max(expected, NEXT_TO_NOTHING)):
            self._gram, self._moment = [0.0] * 6, [0.0] * 3
            weight = 2.0 * SURPRISES
        terms = (a * a, a * b, a * c, b * b, b * c, c * c)
        self._gram = [old * FADE + weight * new for old, new in zip(self._gram, terms, strict=True)]
        self._moment = [old * FADE + weight * ratio * new for old, new in zip(self._moment, features, strict=True)]
        self._solved = None

    def values(self) -> tuple[float, float, float]:
        """Drift, batch cost and token cost; costs are not negative."""
        if self._solved is None:
            self._solved = self._solve()
        return self._solved

    def _surprised(self, ratio: float) -> bool:
        """Whether so many steps in a row took more, or less, that it is the machine and no accident."""
        if 1 / SURPRISE < ratio < SURPRISE:
            self._surprises = 0
        else:
            way = 1 if ratio > 1 else -1
            self._surprises = self._surprises + way if self._surprises * way > 0 else way
        if abs(self._surprises) < SURPRISES:
            return False
        self._surprises = 0
        return True

    def _solve(self) -> tuple[float, float, float]:
        a, b, c, d, e, f = self._gram
        a, d, f = a + RIDGE[0], d + RIDGE[1], f + RIDGE[2]
        x, y, z = self._moment
        x += RIDGE[0]
        aa, ab, ac = d * f - e * e, c * e - b * f, b * e - c * d
        determinant = a * aa + b * ab + c * ac
        bb, bc, cc = a * f - c * c, b * c - a * e, a * d - b * b
        drift = (aa * x + ab * y + ac * z) / determinant
        batch = (ab * x + bb * y + bc * z) / determinant
        tokens = (ac * x + bc * y + cc * z) / determinant
        return max(drift, 0.02), max(batch, 0.0), max(tokens, 0.0)


class StepCost:
    """Seconds of a verify."""

    def __init__(self) -> None:
        self.shape = Shape()
        self.coefficients = Coefficients()
        self._row_seconds = self._row_expected = 0.0
        self._held: list[tuple[tuple[int, float, int, float, int], float]] = []
        self._since_plain = self._plain_steps = 0

    def __bool__(self) -> bool:
        return bool(self.shape)

    @property
    def row_factor(self) -> float:
        """What additional rows take, in what the shape says of them."""
        return (self._row_seconds + ROW_DOUBT) / (self._row_expected + ROW_DOUBT)

    def anchor(self, size: int, seconds: float, batch: int = 1) -> None:
        """A measurement from start-up, without context."""
        self.shape.put(batch, size, seconds)

    @property
    def wants_plain(self) -> bool:
        """Whether a plain step should be timed now, as rounds with drafts tell too little of what the machine does."""
        return self._since_plain >= PLAIN_EVERY or self._plain_steps < FIRST_PLAIN or bool(self._held)

    def observe(self, size: int, seconds: float, batch: int = 1, tokens: float = 0, plain: int | None = None) -> None:
        """A step of `batch` requests and `tokens` tokens of context took `seconds`; `plain` rows are no draft's."""
        plain = size if plain is None else plain
        seconds = max(seconds, NEXT_TO_NOTHING)
        if not self.shape:
            self.shape.put(1, size, seconds)
        if size > plain:
            self._observe_drafted(size, seconds, batch, tokens, plain)
        else:
            self._observe_plain(size, seconds, batch, tokens)

    def _observe_plain(self, size: int, seconds: float, batch: int, tokens: float) -> None:
        self._since_plain, self._plain_steps = 0, self._plain_steps + 1
        ratio = seconds / self.seconds(size, batch, tokens)
        held, self._held = self._held, []
        if self._plain_steps == 1 or (held and _alike([ratio, *(each[1] for each in held)])):
            self.shape.scale(ratio)  # the machine, or the whole table, is another than was thought
        else:
            for each, _ in held:
                self._observe_rows(*each)
        base = self.shape.seconds(batch, size)
        drift, *_ = self.coefficients.values()
        deviation = (seconds - self.seconds(size, batch, tokens)) / drift
        self.coefficients.observe(_features(base, self._unit(), batch, tokens), seconds / base)
        bound = TOLERANCE * base
        self.shape.move(batch, size, POINT_STEP * max(min(deviation, bound), -bound), 0.1 * base)

    def _observe_drafted(self, size: int, seconds: float, batch: int, tokens: float, plain: int) -> None:
        self._since_plain += 1
        ratio = seconds / self.seconds(size, batch, tokens, plain)
        round_ = (size, seconds, batch, tokens, plain)
        if len(self._held) < SURPRISES and not 1 / SURPRISE < ratio < SURPRISE:
            self._held.append((round_, ratio))
        else:
            self._observe_rows(*round_)

    def _observe_rows(self, size: int, seconds: float, batch: int, tokens: float, plain: int) -> None:
        """Learn what additional rows take, all else being as it is thought to be."""
        drift = self.coefficients.values()[0]
        least = self.shape.seconds(batch, plain)
        more = (self.shape.seconds(batch, size) - least) / least
        taken = (seconds - self._extra(batch, tokens)) / (drift * least) - 1.0
        expected = self.row_factor * more
        weight = trust(max(taken - expected, 0.0) / (1.0 + expected))
        self._row_seconds = self._row_seconds * ROW_FADE + weight * max(taken, 0.0)
        self._row_expected = self._row_expected * ROW_FADE + weight * more
        self.shape.move(batch, size, POINT_STEP * max(min(taken - expected, TOLERANCE), -TOLERANCE) * least, least)

    def seconds(self, size: int, batch: int = 1, tokens: float = 0, plain: int | None = None) -> float:
        """Expected seconds.

        Raises:
            ValueError: nothing was measured.
        """
        drift = self.coefficients.values()[0]
        return drift * self._base(size, batch, size if plain is None else plain) + self._extra(batch, tokens)

    def curve(self, batch: int, tokens: float, plain: int) -> Callable[[int], float]:
        """Return `seconds` as a function of the size alone; it holds until the next observation."""
        drift, seconds = self.coefficients.values()[0], self.shape.seconds
        least, factor, extra = seconds(batch, plain), self.row_factor, self._extra(batch, tokens)

        def at(size: int) -> float:
            whole = seconds(batch, size)
            return drift * (whole if size <= plain else least + factor * (whole - least)) + extra

        return at

    def _base(self, size: int, batch: int, plain: int) -> float:
        whole = self.shape.seconds(batch, size)
        if size <= plain:
            return whole
        least = self.shape.seconds(batch, plain)
        return least + self.row_factor * (whole - least)

    def _extra(self, batch: int, tokens: float) -> float:
        _, batch_cost, token_cost = self.coefficients.values()
        if batch_cost == 0.0 and token_cost == 0.0:
            return 0.0
        return self._unit() * (batch_cost * (batch - 1) + token_cost * tokens / TOKENS_UNIT)

    def _unit(self) -> float:
        """Seconds of the smallest size: what additional costs are counted in."""
        return self.shape.seconds(1, 0)


def _features(base: float, unit: float, batch: int, tokens: float) -> tuple[float, float, float]:
    scale = unit / base
    return 1.0, (batch - 1) * scale, tokens / TOKENS_UNIT * scale


class DraftCost:
    """What one proposer's drafts take, by length, batch and tokens to be read, in the caller's unit.

    `fixed + level * length + row * length * (batch - 1)`, fitted to the drafts as they come, and a price for each
    token that has to be read first. A line, and not a curve by length: drafts of lengths that are seldom made
    would otherwise keep what they cost once, beside others that are measured all the time. A draft that has much to
    read says what reading costs and next to nothing about drafting, so the two are measured apart.
    """

    def __init__(self) -> None:
        self._gram = [0.0] * 6  # of the symmetric 3 x 3: 00 01 02 11 12 22
        self._moment = [0.0] * 3
        self._solved: tuple[float, float, float] | None = None
        self._reading: deque[float] = deque(maxlen=READING_WINDOW)
        self._reading_price = 0.0
        self._surprises: list[float] = []
        self._seen = False

    def anchor(self, length: int, taken: float, batch: int = 1) -> None:
        """A measurement from start-up, with nothing to read."""
        for _ in range(ANCHOR_WEIGHT):
            self._fit(length, batch, max(taken, NEXT_TO_NOTHING))

    def observe(self, length: int, taken: float, batch: int, lag: float) -> None:
        """Drafts for `batch` requests, of which `lag` tokens had to be read first."""
        taken = max(taken, NEXT_TO_NOTHING)
        if lag >= MUCH_TO_READ * batch:
            drafting = self._line(length, batch) if self._known else taken * length / (length + lag)
            self._reading.append(max(taken - drafting, 0.0) / lag)
            self._reading_price = median(self._reading)
            return
        if self._known:
            self._scale(taken / max(self._line(length, batch), NEXT_TO_NOTHING))
        self._seen = True
        self._fit(length, batch, taken)

    def value(self, length: int, batch: int, lag: float) -> float:
        """Expected cost. Before the first draft without much to read, one candidate counts as one token read."""
        reading = self._reading_price
        drafting = self._line(length, batch) if self._known else reading * length
        return drafting + reading * lag

    @property
    def _known(self) -> bool:
        return self._gram[0] > 0

    def _scale(self, ratio: float) -> None:
        """The first draft says how far off the start-up's measurements are; later ones have to agree on it."""
        if not 1 / SURPRISE < ratio < SURPRISE:
            self._surprises.append(ratio)
        else:
            self._surprises.clear()
        ups = sum(ratio > 1 for ratio in self._surprises)
        if 0 < ups < len(self._surprises):
            self._surprises = [ratio]
        if self._surprises and (not self._seen or len(self._surprises) >= SURPRISES):
            factor = median(self._surprises)
            self._moment = [each * factor for each in self._moment]
            self._solved = None
            self._surprises.clear()

    def _fit(self, length: int, batch: int, taken: float) -> None:
        row = (1.0, float(length), length * (batch - 1.0))
        expected = max(self._line(length, batch), NEXT_TO_NOTHING) if self._known else taken
        weight = trust(abs(taken - expected) / expected) / max(expected, taken) ** 2
        a, b, c = row
        terms = (a * a, a * b, a * c, b * b, b * c, c * c)
        self._gram = [old * DRAFT_FADE + weight * new for old, new in zip(self._gram, terms, strict=True)]
        self._moment = [old * DRAFT_FADE + weight * taken * new for old, new in zip(self._moment, row, strict=True)]
        self._solved = None

    def _line(self, length: int, batch: int) -> float:
        if self._solved is None:
            self._solved = self._solve()
        fixed, level, row = self._solved
        return fixed + level * length + row * length * (batch - 1)

    def _solve(self) -> tuple[float, float, float]:
        """Coefficients that are not negative; one that would be is left out, the fixed part first."""
        a, b, c, d, e, f = self._gram
        x, y, z = self._moment
        a, f = a * (1 + SHRINKAGE), f + SHRINKAGE * d
        aa, ab, ac = d * f - e * e, c * e - b * f, b * e - c * d
        fixed, level, row = (
            aa * x + ab * y + ac * z,
            ab * x + (a * f - c * c) * y + (b * c - a * e) * z,
            ac * x + (b * c - a * e) * y + (a * d - b * b) * z,
        )
        if fixed >= 0 and level >= 0 and row >= 0:
            determinant = a * aa + b * ab + c * ac
            return fixed / determinant, level / determinant, row / determinant
        level, row = f * y - e * z, d * z - e * y
        if fixed < 0 and level >= 0 and row >= 0:
            return 0.0, level / aa, row / aa
        gram = ((a, b, c), (b, d, e), (c, e, f))
        kept = [0, 1, 2]
        while True:
            values = _solved([[gram[i][j] for j in kept] for i in kept], [self._moment[i] for i in kept])
            found = dict(zip(kept, values, strict=True))
            negative = [at for at in kept if found[at] < 0]
            if not negative:
                return found.get(0, 0.0), found.get(1, 0.0), found.get(2, 0.0)
            kept.remove(negative[0])


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small system of positive definite equations by elimination."""
    size = len(right)
    for at in range(size):
        pivot = matrix[at][at]
        for below in range(at + 1, size):
            factor = matrix[below][at] / pivot
            if factor:
                for column in range(at, size):
                    matrix[below][column] -= factor * matrix[at][column]
                right[below] -= factor * right[at]
    for at in range(size - 1, -1, -1):
        known = sum(matrix[at][column] * right[column] for column in range(at + 1, size))
        right[at] = (right[at] - known) / matrix[at][at]
    return right


class CostModel:
    """Seconds of a round's verify, and of its drafts by proposer.

    Drafts are kept in plain steps of one request. Those are measured in every round, drafts only while they
    are made: a proposer that is left out since the machine was slow gets quicker again with the machine.

    `bucket` maps a number of rows to the number that is really computed, padding included, so
    that equal work is measured as one.
    """

    def __init__(self, bucket: Callable[[int], int] = lambda rows: rows) -> None:
        self.bucket = bucket
        self.verify = StepCost()
        self._drafts: dict[str, DraftCost] = {}
        self._plain: float | None = None

    def knows(self, proposer: str) -> bool:
        """Whether a draft of this proposer was ever timed."""
        return proposer in self._drafts

    def anchor_verify(self, rows: int, seconds: float, *, batch: int = 1) -> None:
        self._plain = None
        self.verify.anchor(self.bucket(rows), seconds, batch)

    def anchor_draft(self, proposer: str, length: int, seconds: float, *, batch: int = 1) -> None:
        self._draft(proposer).anchor(length, seconds / self._plain_step(), batch)

    def observe_verify(self, rows: int, seconds: float, *, batch: int = 1, context: int = 0) -> None:
        """A step without its drafts: `rows` token rows of `batch` requests, `context` tokens in all of them."""
        self._plain = None
        self.verify.observe(self.bucket(rows), seconds, batch, context, self.bucket(min(batch, rows)))

    @property
    def wants_plain(self) -> bool:
        """Whether a plain step should be timed now."""
        return self.verify.wants_plain

    def observe_draft(self, proposer: str, length: int, seconds: float, *, batch: int = 1, lag: float = 0) -> None:
        """Drafts for `batch` requests, of which the proposer had not read `lag` tokens."""
        if length > 0:
            self._draft(proposer).observe(length, seconds / self._plain_step(), batch, lag)

    def verify_seconds(self, rows: int, *, batch: int = 1, context: int = 0) -> float:
        """Expected seconds of a step without its drafts; 1 before anything was measured."""
        if not self.verify:
            return 1.0
        return self.verify.seconds(self.bucket(rows), batch, context, self.bucket(min(batch, rows)))

    def verify_curve(self, *, batch: int, context: int) -> Callable[[int], float]:
        """Return `verify_seconds` as a function of the rows, `batch` at least; it holds until the next observation."""
        if not self.verify:
            return lambda rows: 1.0
        bucket = self.bucket
        curve = self.verify.curve(batch, context, bucket(batch))
        return lambda rows: curve(bucket(rows))

    def draft_seconds(self, proposer: str, length: int, *, batch: int = 1, lag: float = 0) -> float:
        """Expected seconds of a proposer's drafts; 0 before anything was measured."""
        cost = self._drafts.get(proposer)
        return cost.value(length, batch, lag) * self._plain_step() if cost is not None and length > 0 else 0.0

    def draft_line(self, proposer: str, *, batch: int = 1, lag: float = 0) -> tuple[float, float]:
        """Expected seconds of drafts of length 0, were there such drafts, and of each candidate."""
        cost = self._drafts.get(proposer)
        if cost is None:
            return 0.0, 0.0
        first, unit = cost.value(1, batch, lag), self._plain_step()
        level = cost.value(2, batch, lag) - first
        return (first - level) * unit, level * unit

    def draft_points(self) -> Mapping[str, dict[int, float]]:
        """Expected seconds by proposer, for some draft lengths."""
        return {name: {length: self.draft_seconds(name, length) for length in SHOWN_LENGTHS} for name in self._drafts}

    def _plain_step(self) -> float:
        """Expected seconds of a plain step of one request; 1 before anything was measured."""
        if self._plain is None:
            self._plain = self.verify_seconds(1)
        return self._plain

    def _draft(self, proposer: str) -> DraftCost:
        return self._drafts.setdefault(proposer, DraftCost())
