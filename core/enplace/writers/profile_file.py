"""Write a profile in the format that the file's name asks for."""

from __future__ import annotations

import os
from pathlib import Path

from enplace.files.json_text import dump_json
from enplace.files.writing import write_atomically
from enplace.values.profile import Profile
from enplace.writers.archive import write_archive
from enplace.writers.text_form import profile_to_json


def write_profile(path: str | os.PathLike[str], profile: Profile) -> None:
    """Write a profile: the open text form if the name ends in ``.json``, else ``.enplace``.

    Raises
    ------
    FileError
        If the file cannot be written.
    """
    if Path(path).suffix.lower() == ".json":
        write_atomically(path, dump_json(profile_to_json(profile), indent=1) + "\n")
    else:
        write_archive(path, profile)
