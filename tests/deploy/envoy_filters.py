"""Checks EnvoyFilters without a mesh.

Puts the patches of each file into the kind of configuration that istiod would patch, and asks the real Envoy whether it accepts
the result. On top of that, what Envoy does not look at: the frame around the patches, whether each gRPC cluster can exist, and
whether the descriptors that the actions make meet rules. Not checked, because it needs a mesh: whether names of virtual hosts,
routes and labels exist there.

usage: envoy_filters.py ENVOY RULES.yaml FILE.yaml...
"""

import copy
import subprocess
import sys
import tempfile

import yaml

TYPES = "type.googleapis.com/envoy.extensions."
HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": TYPES + "upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}

# The fields of an EnvoyFilter that these files may use, by the path to their parent; `*` is any key.
FRAME = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace", "labels", "annotations"},
    "spec": {"workloadSelector", "configPatches", "priority"},
    "spec.workloadSelector": {"labels"},
    "spec.configPatches": {"applyTo", "match", "patch"},
    "spec.configPatches.match": {"context", "proxy", "listener", "routeConfiguration", "cluster"},
    "spec.configPatches.match.listener": {"portNumber", "filterChain", "name"},
    "spec.configPatches.match.listener.filterChain": {"name", "sni", "filter"},
    "spec.configPatches.match.listener.filterChain.filter": {"name", "subFilter"},
    "spec.configPatches.match.listener.filterChain.filter.subFilter": {"name"},
    "spec.configPatches.match.routeConfiguration": {"portNumber", "portName", "gateway", "vhost", "name"},
    "spec.configPatches.match.routeConfiguration.vhost": {"name", "route"},
    "spec.configPatches.match.routeConfiguration.vhost.route": {"name", "action"},
    "spec.configPatches.patch": {"operation", "value", "filterClass"},
}
FREE = {"metadata.labels", "metadata.annotations", "spec.workloadSelector.labels", "spec.configPatches.patch.value"}
CONTEXTS = {"GATEWAY", "SIDECAR_INBOUND", "SIDECAR_OUTBOUND"}


class Wrong(Exception):
    pass


def check_frame(node, path=""):
    """Refuses a field that an EnvoyFilter does not have: istiod would drop it, or refuse it much later."""
    if isinstance(node, list):
        for item in node:
            check_frame(item, path)
    elif isinstance(node, dict) and path not in FREE:
        unknown = set(node) - FRAME.get(path, set())
        if unknown:
            raise Wrong(f"an EnvoyFilter has no field {sorted(unknown)} at '{path}'")
        for key, value in node.items():
            check_frame(value, f"{path}.{key}".lstrip("."))


def merged(old, new):
    """As protobuf merges: maps by field, lists one after the other, anything else replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = dict(old)
        for key, value in new.items():
            result[key] = merged(result[key], value) if key in result else copy.deepcopy(value)
        return result
    if isinstance(old, list) and isinstance(new, list):
        return old + copy.deepcopy(new)
    return copy.deepcopy(new)


def endpoints(name):
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 1}}
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


class Proxy:
    """What istiod would have made for the workload, as far as the patches can touch it."""

    def __init__(self):
        router = {"name": "envoy.filters.http.router", "typed_config": {"@type": TYPES + "filters.http.router.v3.Router"}}
        self.filters = [router]
        self.hosts = {}
        self.clusters = {"backend": {"name": "backend", "type": "STATIC", "load_assignment": endpoints("backend")}}

    def host(self, name):
        return self.hosts.setdefault(name, {"name": name, "domains": [name], "routes": {}})

    def route(self, match):
        vhost = match["routeConfiguration"]["vhost"]
        name = vhost["route"].get("name", "default")
        made = {"name": name, "match": {"prefix": "/" + name}, "route": {"cluster": "backend"}}
        return self.host(vhost["name"])["routes"], name, made

    def apply(self, patch):
        if patch["match"].get("context") not in CONTEXTS:
            raise Wrong(f"the context {patch['match'].get('context')!r} is none of {sorted(CONTEXTS)}")
        value = patch["patch"]["value"]
        kind = (patch["applyTo"], patch["patch"]["operation"])
        if kind == ("HTTP_FILTER", "INSERT_BEFORE"):
            before = patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            names = [each["name"] for each in self.filters]
            if before not in names:
                raise Wrong(f"there is no HTTP filter {before!r} to insert before")
            self.filters.insert(names.index(before), value)
        elif kind == ("VIRTUAL_HOST", "MERGE"):
            name = patch["match"]["routeConfiguration"]["vhost"]["name"]
            self.hosts[name] = merged(self.host(name), value)
        elif kind == ("HTTP_ROUTE", "MERGE"):
            routes, name, made = self.route(patch["match"])
            routes[name] = merged(routes.get(name, made), value)
        elif kind == ("CLUSTER", "ADD"):
            self.clusters[value["name"]] = value
        else:
            raise Wrong(f"this check does not know {kind[0]} with {kind[1]}")

    def invent_clusters_of_services(self):
        """Envoy accepts any name here, so that a misspelt one would only fail in the mesh."""
        for name in grpc_clusters(self.filters):
            if name in self.clusters:
                continue
            parts = name.split("|")
            if len(parts) != 4 or parts[0] != "outbound" or not parts[1].isdigit() or not parts[3].endswith(".svc.cluster.local"):
                raise Wrong(f"no patch adds the cluster {name!r}, and it is no outbound|port||host of a Service")
            self.clusters[name] = {
                "name": name,
                "type": "STATIC",
                "typed_extension_protocol_options": HTTP2,
                "load_assignment": endpoints(name),
            }

    def bootstrap(self):
        hosts = []
        for host in self.hosts.values():
            routes = list(host["routes"].values()) or [{"match": {"prefix": "/"}, "route": {"cluster": "backend"}}]
            hosts.append({**host, "routes": routes})
        manager = {
            "@type": TYPES + "filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "patched",
            "http_filters": self.filters,
            "route_config": {"name": "patched", "virtual_hosts": hosts},
        }
        network_filter = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        listener = {
            "name": "patched",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [{"filters": [network_filter]}],
        }
        return {"static_resources": {"listeners": [listener], "clusters": list(self.clusters.values())}}


def every(node, key):
    """The value of every field of this name, however deep."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from every(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from every(value, key)


def grpc_clusters(node):
    return {service["cluster_name"] for service in every(node, "envoy_grpc")}


def entry(action):
    """Key and, where it is known before a request comes, value of the entry that an action makes."""
    (kind, fields), = action.items()
    if kind == "generic_key":
        return fields.get("descriptor_key", "generic_key"), fields["descriptor_value"]
    if kind == "request_headers":
        return fields["descriptor_key"], None
    if kind == "remote_address":
        return "remote_address", None
    raise Wrong(f"this check does not know the action {kind}")


def check_descriptors(patched, domain_rules):
    """Every descriptor that the actions can make must meet a limit."""
    domains = set(every(patched, "domain"))
    if domains != set(domain_rules):
        raise Wrong(f"asks for the domains {sorted(domains)}, the rules are for {sorted(domain_rules)}")
    limits = [limit for limits in every(patched, "rate_limits") for limit in limits]
    if not limits:
        raise Wrong("no patch has actions, so that nothing would be limited")
    (rules,) = domain_rules.values()
    for limit in limits:
        entries = [entry(action) for action in limit["actions"]]
        nodes, met = rules, None
        for key, value in entries:
            met = next((n for n in nodes or [] if n["key"] == key and n.get("value") in (None, value)), None)
            nodes = met and met.get("descriptors")
        if not met or "rate_limit" not in met:
            raise Wrong(f"no rule limits {entries}")


def check(envoy, domain_rules, path):
    with open(path, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    proxy = Proxy()
    for document in documents:
        if (document["apiVersion"], document["kind"]) != ("networking.istio.io/v1alpha3", "EnvoyFilter"):
            raise Wrong(f"{document['kind']} is no EnvoyFilter")
        check_frame(document)
        for patch in document["spec"]["configPatches"]:
            proxy.apply(patch)
    proxy.invent_clusters_of_services()
    bootstrap = proxy.bootstrap()
    check_descriptors(bootstrap, domain_rules)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(bootstrap, file)
        file.flush()
        command = [envoy, "--mode", "validate", "-c", file.name, "-l", "error", "--disable-hot-restart"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Wrong(f"Envoy refuses it: {(run.stdout + run.stderr).strip()[-2000:]}")


def main(envoy, rules_path, *paths):
    with open(rules_path, encoding="utf-8") as file:
        domain_rules = {d["domain"]: d["descriptors"] for d in yaml.safe_load_all(file)}
    failed = False
    for path in paths:
        try:
            check(envoy, domain_rules, path)
            print(f"{path}: ok")
        except Wrong as wrong:
            failed = True
            print(f"{path}: {wrong}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
