# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: from the data of a few files to the one configuration that every rank runs.

A recipe is a mapping, and so are the layers beneath it: what all recipes of an engine, a platform or a transport share.
Its ``variants`` hold, per selector (``ranks``, ``topology``, ``profile``, ``speculation``, ...) and per value, what
differs from the rest, further variants included; ``defaults`` names the value taken when the user says nothing.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox

from ansible_collections.tandem.serving.plugins.module_utils import _memory_plan
from ansible_collections.tandem.serving.plugins.module_utils._check import Check, check

# What an override may touch. Everything else says which recipe this is.
OVERRIDABLE = (
    "ablation",
    "canary",
    "container",
    "drafter",
    "env",
    "image",
    "limits",
    "memory",
    "model",
    "ports",
    "serve",
    "startup",
)
# The sections whose keys are all known, each with a value of its kind.
_CLOSED: dict[str, dict[str, Any]] = {
    "ports": {"api": 8888, "bind": "127.0.0.1", "master": 29521},
    "limits": {"ready_seconds": 3600, "stop_seconds": 60, "probe_seconds": 60},
    "memory": {
        "host_gib": 3,
        "init_gib": 9,
        "floor_gib": 0.75,
        "advised_gib": 110,
        "pool_gib": 12.5,
        "weights_gib": 82.06,
        "runtime_gib": 1.9,
        "runtime_gib_per_1k_batch": 0.53,
        "page_tokens": 256,
        "page_bytes": 1175552,
        "fixed_pages": 1,
        "kind": "unified",
        "state": {"groups": 4, "pages": 2},
        "window": {"tokens": 2048, "page_tokens": 64},
    },
}
_KINDS: dict[str, type | tuple[type, ...]] = {
    "true or false": bool,
    "a number": (int, float),
    "a mapping": Mapping,
    "a list": list,
    "text": str,
}
# Where the user says what two selectors are. The others have a variable of their own.
_SET_BY = {"ranks": "the hosts of the group", "topology": "fabric_topology"}
_COMMIT = re.compile(r"[0-9a-f]{40}")


class RecipeError(Exception):
    """The recipe or what the user asked of it makes no sense. The text says what was expected and what was found."""


def _copy(value: Any) -> Any:
    """Plain dicts and lists, without the templating that Ansible hangs on its own."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _merge(base: Any, over: Any) -> Any:
    """Merge mappings recursively; anything else replaces. ``null`` in ``over`` takes a key away."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return _copy(over)
    merged: dict[Any, Any] = _copy(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def stack(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge layers from the most general to the recipe itself. Their guards all stay."""
    merged: dict[str, Any] = {}
    guards: list[Any] = []
    for layer in layers:
        guards += layer.get("guards", [])
        merged = _merge(merged, layer)
    return {**merged, "guards": guards}


def _choose(
    recipe: Mapping[str, Any], selector: str, asked: str, accepted: Collection[str]
) -> tuple[str, list[dict[str, Any]]]:
    """The value of a selector, and what was passed over because its licences are not accepted.

    A default may be a list in the order of preference. Its last value is taken when the licences of the others are not
    accepted.
    """
    if asked:
        return asked, []
    default = recipe.get("defaults", {}).get(selector, "")
    preferred = default if isinstance(default, list) else [default]
    passed: list[dict[str, Any]] = []
    for choice in preferred[:-1]:
        licences = (recipe["variants"][selector][choice] or {}).get("licences", {})
        missing = {repo: name for repo, name in licences.items() if repo not in accepted}
        if not missing:
            return str(choice), passed
        passed.append({"selector": selector, "choice": str(choice), "licences": missing})
    return str(preferred[-1]), passed


def _pin(recipe: dict[str, Any], lock: Mapping[str, Any]) -> None:
    """Replace tags and branches by what the lock file says they were."""
    images, revisions = lock.get("images", {}), lock.get("revisions", {})
    image = recipe.get("image", {})
    for key in ("ref", "base"):
        if image.get(key) in images:
            image[key] = f"{image[key]}@{images[image[key]]}"
    for part in (recipe.get("model", {}), recipe.get("drafter", {})):
        name = f"{part.get('repo')}@{part.get('revision')}"
        part.update({"revision": revisions[name]} if name in revisions else {})


def unpinned(recipe: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What a lock file has to pin: ``images`` by tag, and ``revisions``, each with ``repo`` and ``revision``."""
    image = recipe.get("image", {})
    wanted = image.get("base") if image.get("source") == "build" else image.get("ref")
    tagged = image.get("source") in ("build", "pull") and wanted and "@" not in wanted
    parts = [recipe.get("model", {}), recipe.get("drafter", {})]
    moving = [part for part in parts if part and not _COMMIT.fullmatch(str(part.get("revision", "")))]
    return {
        "images": [wanted] if tagged else [],
        "revisions": [{"repo": part["repo"], "revision": str(part.get("revision", "main"))} for part in moving],
    }


def _kind(value: Any) -> str:
    return next((name for name, kind in _KINDS.items() if isinstance(value, kind)), "null")


def _check_kinds(path: Sequence[str], base: Any, over: Any, *, closed: bool) -> None:
    """Refuse what is of another kind than the value it replaces, and unknown keys where the section is ``closed``.

    Where text is expected a number will do, and null takes away what it names.
    """
    wanted, found = _kind(base), _kind(over)
    if found != wanted and not (wanted == "text" and found in ("a number", "true or false")):
        like = dict(list(base.items())[:1]) if wanted == "a mapping" else base
        for key in reversed(path):
            like = {key: like}
        raise RecipeError(
            f"{'.'.join(path)} is {json.dumps(over, default=str)}, expected {wanted}. Write it like {json.dumps(like)}."
        )
    if wanted != "a mapping":
        return
    unknown = sorted(map(str, set(over) - set(base)))
    if closed and unknown:
        raise RecipeError(f"{'.'.join(path)} has {', '.join(unknown)}, expected only {', '.join(sorted(base))}.")
    for key, value in over.items():
        if value is not None and base.get(key) is not None:
            _check_kinds([*path, str(key)], base[key], value, closed=closed)


def _check_overrides(recipe: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    if not isinstance(overrides, Mapping):
        raise RecipeError(
            f"recipe_overrides is text, {overrides!r}, expected a mapping. On the command line that is "
            """-e '{"recipe_overrides": {"serve": {"max-num-seqs": 4}}}'."""
        )
    unknown = sorted(set(overrides) - set(OVERRIDABLE))
    if unknown:
        raise RecipeError(
            f"recipe_overrides has {', '.join(unknown)}, expected only {', '.join(OVERRIDABLE)}. "
            "A value for the engine's command line belongs under serve."
        )
    for section, over in _copy(overrides).items():
        known = {**_CLOSED.get(section, {}), **recipe.get(section, {})}
        if section == "env" and isinstance(over, Mapping):
            # The environment is text, whatever the recipe writes.
            known = dict.fromkeys(over, "")
        _check_kinds(["recipe_overrides", section], known, over, closed=section in _CLOSED)
    misspelt = sorted(key for key in overrides.get("serve", {}) if "_" in key)
    if misspelt:
        raise RecipeError(
            f"recipe_overrides.serve has {', '.join(misspelt)}, expected the engine's own spelling: "
            f"{', '.join(key.replace('_', '-') for key in misspelt)}."
        )


def _misspelt(known: Iterable[str], flags: Iterable[str]) -> dict[str, str]:
    """Flags that the recipe lacks but for a slip of the fingers: each with the one that was meant."""
    known = list(known)
    found = {}
    for flag in set(flags) - set(known):
        alike = [name for name in known if name.count("-") == flag.count("-")]
        if meant := difflib.get_close_matches(flag, alike, 1, 0.9):
            found[flag] = meant[0]
    return found


def _licensed(part: Mapping[str, Any]) -> set[str]:
    """The repositories whose licence a recipe, or one of its variants, asks for."""
    variants = [change for choices in part.get("variants", {}).values() for change in choices.values() if change]
    return set(part.get("licences", {})).union(*map(_licensed, variants))


def resolve(
    layers: Iterable[Mapping[str, Any]],
    selected: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    lock: Mapping[str, Any] | None = None,
    accepted_licences: Collection[str] = (),
) -> dict[str, Any]:
    """Stack the layers, apply the selected variants, then the user's overrides, then the lock file.

    ``layers`` go from the most general to the recipe itself. ``selected`` maps a selector to its value; an empty value
    means the recipe's own default. Returns the recipe without ``variants`` and ``defaults``, with ``selected`` as it was
    resolved, ``passed_over``, the defaults that wait for a licence, and ``misspelt``, flags that look like another one.
    Raises RecipeError on a value or a key that the recipe does not know.
    """
    recipe = stack(layers)
    licensed = _licensed(recipe)
    stray = sorted(set(accepted_licences) - licensed)
    # A recipe without licences lets stand what an inventory accepts for another one.
    if licensed and stray:
        raise RecipeError(
            f"recipe_accept_licences names {', '.join(stray)}, expected repositories whose licence recipe "
            f"{recipe['name']} asks for: {', '.join(sorted(licensed))}."
        )
    resolved: dict[str, str] = {}
    passed_over: list[dict[str, Any]] = []
    for selector, value in selected.items():
        choice, passed = _choose(recipe, selector, str(value), accepted_licences)
        resolved[selector] = choice
        passed_over += passed
        known = {str(key): change for key, change in recipe.get("variants", {}).get(selector, {}).items()}
        if choice in known:
            recipe = _merge(recipe, known[choice] or {})
        elif known and choice:
            raise RecipeError(
                f"recipe {recipe['name']}: {selector} is '{choice}', expected one of {', '.join(sorted(known))}. "
                f"Set {_SET_BY.get(selector, f'recipe_{selector}')} to one of these, or add the variant to the recipe's file."
            )
        elif choice and selector not in _SET_BY:
            raise RecipeError(
                f"recipe {recipe['name']}: {selector} is '{choice}', expected nothing: this recipe has no {selector} to choose. "
                f"Leave recipe_{selector} empty."
            )
    _check_overrides(recipe, overrides)
    misspelt = _misspelt(recipe.get("serve", {}), overrides.get("serve", {}))
    recipe = _merge(
        {key: value for key, value in recipe.items() if key not in ("layers", "variants", "defaults", "profiles")},
        overrides,
    )
    _pin(recipe, lock or {})
    return {**recipe, "selected": resolved, "passed_over": passed_over, "misspelt": misspelt}


def choose_profile(
    layers: Sequence[Mapping[str, Any]],
    selected: Mapping[str, Any],
    overrides: Mapping[str, Any],
    hosts: Iterable[tuple[float, float | None]],
    **options: Any,
) -> str:
    """The first of the recipe's ``profiles`` whose memory plan fits every host, or else the last one.

    ``hosts`` has the total and the free memory of each in GiB, None where it cannot be told. Without hosts it is the
    recipe's default; ``options`` are those of ``resolve``.
    """
    profiles = [str(name) for name in stack(layers).get("profiles", [])]
    hosts = list(hosts)
    if not hosts or not profiles:
        return ""
    for name in profiles:
        recipe = resolve(layers, {**selected, "profile": name}, overrides, **options)
        if all(_memory_plan.plan(recipe, total, free)["fits"] for total, free in hosts):
            return name
    return profiles[-1]


@functools.cache
def _compile(expression: str) -> jinja2.environment.TemplateExpression:
    environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
    return environment.compile_expression(expression, undefined_to_none=False)


def _evaluate(where: str, expression: str, terms: Mapping[str, Any]) -> Any:
    """The value of a Jinja expression. Raises RecipeError, which says ``where``, also when the value is undefined."""
    try:
        value = _compile(str(expression))(**terms)
        str(value)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise RecipeError(
            f"{where}: {error}. Look in recipe_overrides for a key that was taken away, then in the recipe."
        ) from error
    return value


def judge(recipe: Mapping[str, Any], context: Mapping[str, Any], accepted: Iterable[str]) -> list[Check]:
    """Hold a resolved recipe against its guards: one check each.

    A guard whose ``when`` is true fails; it warns where its ``verdict`` says so, or where the user accepted its risk.
    ``when`` and ``found`` are Jinja expressions over the recipe's keys, those of ``context`` and the recipe's ``terms``,
    which are expressions too. A key that a guard asks for and none of them has is an error of the recipe, not a pass.
    """
    guards: list[Mapping[str, str]] = recipe["guards"]
    accepted = list(accepted)
    names = [guard["name"] for guard in guards]
    stray = sorted(set(accepted) - set(names))
    if stray:
        raise RecipeError(
            f"recipe_accept_risk names {', '.join(stray)}, expected names of guards: {', '.join(sorted(names))}."
        )
    terms = {**_copy(recipe), **context}
    for name, expression in recipe.get("terms", {}).items():
        terms[name] = _evaluate(f"term {name} of recipe {recipe['name']}", expression, terms)
    checks = []
    for guard in guards:
        name = guard["name"]
        where = f"guard {name} of recipe {recipe['name']}"
        wrong = bool(_evaluate(where, guard["when"], terms))
        found = _evaluate(where, guard["found"], terms)
        verdict: Any = "pass" if not wrong else "warn" if name in accepted else guard.get("verdict", "fail")
        checks.append(
            check(
                f"guard {name}",
                verdict,
                guard["expected"],
                found,
                cause=name if wrong else "ok",
                evidence=[guard["reason"] if wrong else f"when: {guard['when']}"],
                remedy=guard["remedy"] if wrong else "",
            )
        )
    return checks
