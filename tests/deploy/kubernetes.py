"""Renders kustomizations, and validates objects: built-in kinds by the schemas of Kubernetes' API, others by our own."""

import functools
import json
from pathlib import Path

import common
import jsonschema
import kubernetes_validate

# Oldest, in between, newest: preStop.sleep is in the API from 1.29 on.
VERSIONS = ("1.29", "1.34", "1.37")
SCHEMAS = Path(__file__).with_name("schemas")


@functools.cache
def rendered(folder):
    """The objects of a kustomization."""
    return common.documents(common.run(common.tool("kubectl"), "kustomize", folder))


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def only(objects, kind):
    (found,) = of_kind(objects, kind)
    return found


def validate(found):
    """Fails where the API server would refuse the object, or a key would have no effect."""
    group = found["apiVersion"].split("/")[0]
    own = SCHEMAS / f"{found['kind'].lower()}.json"
    if own.exists():
        schema = json.loads(own.read_text())
        assert found["apiVersion"] == schema["properties"]["apiVersion"]["const"]
        jsonschema.Draft202012Validator(schema).validate(found)
        return
    assert "." not in group or group.endswith(".k8s.io"), f"no schema for {found['apiVersion']} {found['kind']}"
    for version in VERSIONS:
        kubernetes_validate.validate(found, version, strict=True)


def validate_pod(spec, name):
    """A pod's specification that is part of another kind of object."""
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
