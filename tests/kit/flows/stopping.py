"""A sink that refuses rows while a file is there, and stops then."""

import os
from pathlib import Path

from unbroken import Call, Client, Dataflow, Generator
from unbroken.errors import Unfit

PLACE = Path(os.environ["FLOW_PLACE"])


def mail(table, unit):
    if table.num_rows and (PLACE / "refusing").exists():
        raise Unfit("no mail today")
    (PLACE / "mails" / str(unit.number)).touch()


flow = Dataflow("stopping", nodes=2, pulse_min=250, pulse_start=500, guarantee="at-least-once")
numbers = flow.source("numbers", Generator(rate=50))


@flow.segment(numbers)
def same(rows):
    return rows.select("n")


flow.sink("mail", same, Call(mail), on_refusal="stop")
flow.sink("seen", same, Client())
