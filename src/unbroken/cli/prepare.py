"""The command that prepares a machine: ``prepare``."""

from __future__ import annotations

import click

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, answer


@command(examples=[("unbroken prepare", "once per machine, or while an image is built")])
@click.option("--force", is_flag=True, help="Replace an archive that exists.")
@AS_JSON
def prepare(force: bool, as_json: bool) -> None:
    """Let Spark start in half of the time: write an archive of its classes to the user's cache directory.

    The archive takes about 150 MB and holds for this Java and this version of Spark. Sessions that find none start
    without it.
    """
    from unbroken.spark.class_archive import archive_file, create

    file = archive_file()
    created = force or not file.is_file()
    if created:
        create()
    text = f"an archive of Spark's classes was written to {file}" if created else f"{file} exists; --force replaces it"
    answer(as_json, text, file=str(file), created=created)
