"""The check whether a backbone has another journal: what it requests, and what it concludes from the answers."""

from __future__ import annotations

from random import Random

from fyrehose.protocols.backbone import restarts
from fyrehose.protocols.backbone.restarts import EVIDENCE, FIRST_ROUNDS, ROUND, ROUNDS, RestartCheck
from fyrehose.records import Run
from tests.verification.consumers.ran import Ran


def test_numbers_are_those_of_the_page() -> None:
    assert (ROUND, FIRST_ROUNDS, EVIDENCE, ROUNDS) == (0.2, 2, 4, 12)


def test_same_earlier_records_in_several_rounds_mean_another_journal() -> None:
    """The model is the list of all answers, each with its round.

    Answers in one round count once, answers with other records than the lowest are no evidence, as they may be what a
    server delivers while it copies records; an answer with the highest sequence ends the check, as the last round does.
    """
    found = 0
    with Ran(restarts) as ran:
        for seed in range(200):
            random, now, rounds, due = Random(seed), 0.0, 0, 0.0
            check, highest, answers = RestartCheck(), 0, list[tuple[int, int, int]]()
            for _ in range(60):
                action = random.choice(("begin", "due", "due", "due", "answer", "answer", "later"))
                if action == "begin":
                    known = random.choice((0, 20, 30))
                    check.begin(known, now)
                    if known and not highest:
                        highest, due, rounds, answers = known, now, 0, []
                elif action == "later":
                    now += random.choice((ROUND / 2, ROUND))
                elif action == "due":
                    now = max(now, due) if random.random() < 0.8 else now
                    expected = []
                    if highest and now >= due:
                        expected = [(highest, highest), (1, highest)][: 1 + (rounds >= FIRST_ROUNDS)]
                        rounds, due = rounds + 1, now + ROUND
                        if rounds > ROUNDS:
                            highest, expected = 0, []
                    assert check.due(now) == expected
                else:
                    first = random.choice((5, 5, 5, 5, 5, 5, 3, 8))
                    last = 20 if random.random() < 0.03 else random.randrange(first, 12)
                    another = check.received(Run.of("b", [b"x"] * (last + 1 - first), source="", first_seq=first))
                    answers += [(rounds, first, last)] * bool(highest)
                    if last >= highest:
                        highest = 0
                    lowest = min((low for _, low, _ in answers), default=0)
                    evidence = {number for number, low, _ in answers if low == lowest and number > FIRST_ROUNDS}
                    assert another == (highest > 0 and len(evidence) >= EVIDENCE)
                    found += another
                assert (check.highest, check.next_due()) == (highest, due if highest else None)
                assert check.suspects == bool(highest and answers)
                if check.suspects:
                    assert (check.end, check.first) == (max(last for *_, last in answers), answers[0][1])
    assert found > 20
    assert ran.never() == set()
