# SPDX-License-Identifier: MIT
"""Sets whose files disagree, with hashes that fit: what is verified must be what is served."""
import edit
import set_edits
from harness import Fault

VERIFY = ("verify", "{set}", "--compare", "none", "--no-record")
OTHERS = (("convert", "{set}", "out"), ("publish", "{set}", "--zoo", "out", "--name", "me/m"), ("serve-env", "{set}"),
          ("convert", "{set}", "out.safetensors"))
PLAIN = set_edits.SERVED | set_edits.IN_H5 | set_edits.IN_PT | set_edits.IN_MANIFEST
# What only verify can tell: no other file of the set says it.
VERIFY_ONLY = ("manifest-model.num_layers", "manifest-model.num_key_value_heads", "manifest-calibration.tokens",
               "h5-covariance-key", "h5-covariance-value", "coded-model.num_key_value_heads")
STRAYS = ("files-more", "files-hidden", "files-deep")


def planted(change, name, hashes):
    def plant(place):
        change(place / name)
        if hashes:
            edit.rehash(place / name)

    return plant


def in_zoo():
    """The same edits in a zoo whose index fits them: pull gives nobody such a set."""
    def planted_there(change):
        def plant(place):
            change(place / "zoo/me/m/latest")
            (place / "zoo/me/m/latest/signature.json").unlink()
            edit.rehash_zoo(place / "zoo")
        return plant

    for index, (name, change) in enumerate(PLAIN.items()):
        if index % 4 == 0 and name not in VERIFY_ONLY:
            yield Fault(f"derived/{name}/pull", ("pull", "me/m", "--zoo", "zoo", "--out", "out"), ("zoo",), planted_there(change))


def strays_stay_behind(folder, _):
    """Files that a manifest does not list may not get into a zoo."""
    strays = [path.name for path in folder.glob("out/**/*") if path.name in ("run.sh", ".env", "x")]
    return f"{strays} published" if strays else None


def faults():
    cases = [*((case, "set", True) for case in PLAIN.items()), *((case, "rich", True) for case in set_edits.IN_MEANS.items()),
             *((case, "coded", True) for case in set_edits.IN_CODED.items()),
             *((case, "set", False) for case in set_edits.IN_LIST.items())]
    for index, ((name, change), folder, hashes) in enumerate(cases):
        # Each edit meets one reader: all derive the same files again, and every run costs a quarter of a second.
        verify = name in VERIFY_ONLY or index % 3 == 0
        others = OTHERS[:2] if folder == "coded" else OTHERS  # what reads this kind of part
        args = VERIFY if verify else others[1 if name in STRAYS else index % len(others)]
        more = {"exits": (1, 3)} if verify else {"exits": (0, 1), "check": strays_stay_behind} if name in STRAYS else {}
        yield Fault(f"derived/{name}/{args[0]}", tuple(word.replace("{set}", folder) for word in args), (folder,),
                    planted(change, folder, hashes), **more)
    yield from in_zoo()
