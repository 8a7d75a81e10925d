"""Reading the YAML of a page by what it is written for: networks, parts of networks, Prometheus, Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from docs.pages import ROOT, Block, blocks, write_files
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_text
from unbroken.flow.network.document import NotYaml, read_document
from unbroken.flow.network.parts import SINKS, SOURCES


def networks(page: str, directory: Path) -> list[Dataflow]:
    """The operator networks of a page: whole ones, and parts of one, each put into the one that is given there."""
    write_files(page, directory)
    found = []
    for block in blocks(page):
        if block.language != "yaml" or block.given or block.not_run is not None:
            continue
        path = directory / f"{Path(page).stem}-line-{block.line}.yaml"
        content = read(block.text)
        if is_network(content):
            found.append(load_text(path, block.text))
        elif is_part(content):
            found.append(load_text(path, completed(block, content)))
    return found


def read(text: str) -> Any:
    """The content by the rules for networks, where ``on`` is a word; None if this is no network at all."""
    try:
        document, _ = read_document(text)
    except NotYaml:
        return None
    return document.plain()


def is_network(content: Any) -> bool:
    return isinstance(content, dict) and {"sources", "operators", "sinks"} <= content.keys()


def is_part(content: Any) -> bool:
    """Whether these are sources, operators or sinks of a network, each by its name."""
    entries = list(content.values()) if isinstance(content, dict) else []
    return bool(entries) and all(
        isinstance(entry, dict) and ("input" in entry or entry.keys() & SOURCES.keys()) for entry in entries
    )


def completed(block: Block, content: dict[str, Any]) -> str:
    """The network that is given on the page, with these parts instead of those of the same names."""
    [given] = [b for b in blocks(block.page) if b.language == "yaml" and b.given]
    network: dict[str, Any] = read(given.text)
    for name, entry in content.items():
        kind = "sources" if "input" not in entry else "sinks" if entry.keys() & SINKS.keys() else "operators"
        for others in ("sources", "operators", "sinks"):
            network[others].pop(name, None)
        network[kind][name] = entry
    wanted = {name for part in ("operators", "sinks") for entry in network[part].values() for name in inputs(entry)}
    # Whatever nobody reads gets a reader, so that only what the page says is judged.
    for name in set(network["sources"]) - wanted:
        network["operators"][f"dup_{name}"] = {"input": name, "dup": {}}
    for name in set(network["operators"]) - wanted:
        network["sinks"][f"see_{name}"] = {"input": name, "client": {}}
    return yaml.safe_dump(network, sort_keys=False)


def inputs(entry: dict[str, Any]) -> list[str]:
    given = entry["input"]
    return [given] if isinstance(given, str) else list(given)


def complaint(block: Block) -> str | None:
    """What is wrong with a block that is no network; None if nothing is."""
    if is_network(read(block.text)) or is_part(read(block.text)):
        return None
    for content in yaml.safe_load_all(block.text):
        if not isinstance(content, dict):
            return "this is no mapping"
        if "scrape_configs" in content or "rule_files" in content:
            missing = [name for name in content.get("rule_files", []) if not _rules(name)]
            if missing:
                return f"there are no rules {', '.join(missing)}"
        elif "apiVersion" in content:
            if not content.get("kind") or not content.get("metadata", {}).get("name"):
                return "a Kubernetes object has a kind and a name"
        elif "services" not in content and "groups" not in content:
            return f"nobody knows what this is for: {', '.join(map(str, content))}"
    return None


def _rules(name: str) -> bool:
    return (ROOT / "deploy" / "prometheus" / name).exists()
