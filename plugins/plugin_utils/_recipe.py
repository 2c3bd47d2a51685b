# Copyright: Tandem contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recipes: from the data of a few files to the one configuration that every rank runs.

A recipe is a mapping, and so are the layers beneath it: what all recipes of an engine, a platform or a transport share.
Its ``variants`` hold, per selector (``ranks``, ``topology``, ``profile``, ``speculation``, ...) and per value, what
differs from the rest, further variants included; ``defaults`` names the value taken when the user says nothing.
"""

from __future__ import annotations

import functools
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


def _check_overrides(overrides: Mapping[str, Any]) -> None:
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
    misspelt = sorted(key for key in overrides.get("serve", {}) if "_" in key)
    if misspelt:
        raise RecipeError(
            f"recipe_overrides.serve has {', '.join(misspelt)}, expected the engine's own spelling: "
            f"{', '.join(key.replace('_', '-') for key in misspelt)}."
        )


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
    resolved and ``passed_over``, the defaults that wait for a licence. Raises RecipeError on a value or a key that the
    recipe does not know.
    """
    recipe = stack(layers)
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
                f"Set recipe_{selector} to one of these, or add the variant to the recipe's file."
            )
    _check_overrides(overrides)
    recipe = _merge(
        {key: value for key, value in recipe.items() if key not in ("layers", "variants", "defaults", "profiles")},
        overrides,
    )
    _pin(recipe, lock or {})
    return {**recipe, "selected": resolved, "passed_over": passed_over}


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
        raise RecipeError(f"{where}: {error}") from error
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
    terms = {**recipe, **context}
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
