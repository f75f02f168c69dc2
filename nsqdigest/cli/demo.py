"""`nsqdigest demo`: the whole of it on this machine, with servers of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nsqdigest.base.errors import EXIT_NO
from nsqdigest.base.shown import printable

LONGEST_S = 24 * 3600
PICTURE_COLUMNS = 100


@click.command("demo", short_help="See all of it at work on this machine.")
@click.option(
    "--seconds",
    type=click.IntRange(0, LONGEST_S),
    default=30,
    envvar="DEMO_SECONDS",
    show_envvar=True,
    show_default=True,
    help="About how long; 0: until Ctrl-C.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the moments of it to FILE, as SVG.",
)
def command(seconds: int, picture: Path | None) -> None:
    """See all of it at work, with nothing but a Redis on this machine.

    Starts a small nsqd, a Redis and a webhook of its own, publishes what goes wrong in a shop, shows the digests that
    come of it, stops Redis and kills the daemon on the way, and looks for each event at the receiver. It leaves nothing
    behind.

    Exit code 0: nothing was lost; 1: something was, or it was ended too early to say.

    \b
    Example:
      nsqdigest demo --seconds 60
    """
    from nsqdigest.demo.display import PlainDisplay, display_for
    from nsqdigest.demo.narrator import Narrator
    from nsqdigest.demo.servers.redis import find_redis

    find_redis()  # without one nothing is promised
    if picture and not picture.absolute().parent.is_dir():
        raise click.UsageError(f"--picture: there is no folder {printable(str(picture.parent))}")
    display = PlainDisplay(sys.stdout, width=PICTURE_COLUMNS) if picture else display_for(sys.stdout)
    try:
        narrator = Narrator(display)
        narrator.opening(seconds)  # before the rest is imported: there is something to read at once

        from nsqdigest.base import resolver
        from nsqdigest.demo.play import Play

        nothing_lost = resolver.run(Play(seconds, narrator).run())
    finally:
        display.close()
    if picture:
        from nsqdigest.demo.picture import svg

        picture.write_text(svg(display.frames, PICTURE_COLUMNS), encoding="utf-8")
    sys.exit(0 if nothing_lost else EXIT_NO)
