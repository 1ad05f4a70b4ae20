# SPDX-License-Identifier: MIT
"""Sets whose files disagree, with hashes that fit: what is verified must be what is served."""
import edit
from harness import Fault
from set_edits import in_h5, in_list, in_manifest, in_pt, in_rich_pt, in_safetensors, served

VERIFY = ("verify", "{set}", "--compare", "none", "--no-record")
OTHERS = (("convert", "{set}", "out"), ("publish", "{set}", "--zoo", "out", "--name", "me/m"), ("serve-env", "{set}"),
          ("convert", "{set}", "out.safetensors"))


def planted(change, name, hashes):
    def plant(place):
        change(place / name)
        if hashes:
            edit.rehash(place / name)

    return plant


def in_zoo(groups):
    """The same edits in a zoo whose index fits them: pull gives nobody such a set."""
    for index, (name, what, change) in enumerate(groups):

        def plant(place, change=change):
            change(place / "zoo/me/m/latest")
            (place / "zoo/me/m/latest/signature.json").unlink()
            edit.rehash_zoo(place / "zoo")

        if index % 4 == 0 and name not in VERIFY_ONLY:
            yield Fault(f"derived/{name}/pull", f"{what}: pull", ("pull", "me/m", "--zoo", "zoo", "--out", "out"), ("zoo",),
                        plant)


# What only verify can tell: no other file of the set says it.
VERIFY_ONLY = ("manifest-model.num_layers", "manifest-model.num_key_value_heads", "h5-covariance-key", "h5-covariance-value")


def strays_stay_behind(folder, _):
    """Files that a manifest does not list may not get into a zoo."""
    strays = [path.name for path in folder.glob("out/**/*") if path.name in ("run.sh", ".env", "x")]
    return f"{strays} published" if strays else None


def faults():
    plain = [*served(), *in_h5(), *in_pt(), *in_safetensors(), *in_manifest()]
    cases = [
        *((case, "set", True) for case in plain), *((case, "rich", True) for case in in_rich_pt()),
        *((case, "set", False) for case in in_list())
    ]
    for index, ((name, what, change), folder, hashes) in enumerate(cases):
        plant = planted(change, folder, hashes)
        args = tuple(word.replace("{set}", folder) for word in VERIFY)
        # Each edit meets one reader: all derive the same files again, and every run costs a quarter of a second.
        if name in VERIFY_ONLY or index % 3 == 0:
            yield Fault(f"derived/{name}/verify", f"{what}: verify", args, (folder,), plant, exits=(1, 3))
            continue
        stray = name in ("files-more", "files-hidden", "files-deep")
        args = tuple(word.replace("{set}", folder) for word in OTHERS[1 if stray else index % len(OTHERS)])
        yield Fault(f"derived/{name}/{args[0]}",
                    f"{what}: {args[0]}",
                    args, (folder,),
                    plant,
                    exits=(0, 1) if stray else (1,),
                    check=strays_stay_behind if stray else None)
    yield from in_zoo(plain)
