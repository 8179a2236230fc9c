"""Checks what kustomize built: each object against the schemas of Kubernetes, and all of them against each other.

Writes the rules of the ConfigMap `sluice-rules` into a directory, for `sluice check`, and prints the settings that sluice is given, for
a look into the table of settings.

usage: manifests.py BUILT.yaml RULES_DIRECTORY
"""

import pathlib
import re
import sys

import kubernetes_validate
import yaml

VERSION = "1.33"
SERVICE_MONITOR = {"selector", "endpoints", "namespaceSelector", "jobLabel"}
ENDPOINT = {"port", "path", "interval", "scrapeTimeout", "scheme", "tlsConfig", "relabelings", "metricRelabelings"}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")

wrong = []


def expect(condition, sentence):
    if not condition:
        wrong.append(sentence)


def title(thing):
    return f"{thing['kind']} {thing['metadata']['name']}"


def selects(selector, labels):
    return selector.items() <= labels.items()


def check_schema(thing):
    if thing["apiVersion"] == "monitoring.coreos.com/v1":
        # The operator's own kind: no schema of it is at hand, so the fields that it may have here are listed above.
        expect(thing["kind"] == "ServiceMonitor", f"{title(thing)}: this check does not know the kind")
        expect(set(thing["spec"]) <= SERVICE_MONITOR, f"{title(thing)}: has unknown fields in its spec")
        for endpoint in thing["spec"]["endpoints"]:
            expect(set(endpoint) <= ENDPOINT, f"{title(thing)}: has unknown fields in an endpoint")
        return
    try:
        kubernetes_validate.validate(thing, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        wrong.append(f"{title(thing)}: {error.message} at {'.'.join(map(str, error.path))}")


class Cluster:
    def __init__(self, things):
        self.things = things
        self.pods = [thing for thing in things if thing["kind"] == "Deployment"]

    def of(self, kind):
        return [thing for thing in self.things if thing["kind"] == kind]

    def named(self, kind, name):
        return next((thing for thing in self.of(kind) if thing["metadata"]["name"] == name), None)

    def selected(self, selector):
        return [pod for pod in self.pods if selects(selector, pod["spec"]["template"]["metadata"]["labels"])]


def containers(deployment):
    pod = deployment["spec"]["template"]["spec"]
    return pod.get("initContainers", []) + pod["containers"]


def port_names(deployment):
    return {port["name"] for container in containers(deployment) for port in container.get("ports", [])}


def check_restricted(deployment):
    """What the namespace's `restricted` level asks for, and a read-only root on top."""
    pod = deployment["spec"]["template"]["spec"]
    name = title(deployment)
    context = pod.get("securityContext", {})
    expect(context.get("runAsNonRoot") is True, f"{name}: may run as root")
    expect(context.get("seccompProfile") == {"type": "RuntimeDefault"}, f"{name}: has no seccomp profile")
    expect(pod.get("automountServiceAccountToken") is False, f"{name}: mounts a token that nobody needs")
    for container in containers(deployment):
        own = container.get("securityContext", {})
        place = f"{name}, container {container['name']}"
        expect(own.get("allowPrivilegeEscalation") is False, f"{place}: may gain privileges")
        expect(own.get("readOnlyRootFilesystem") is True, f"{place}: may write to its image")
        expect(own.get("capabilities") == {"drop": ["ALL"]}, f"{place}: keeps capabilities")
        expect({**context, **own}.get("runAsUser", 0) > 0, f"{place}: does not say as whom it runs")


def check_containers(deployment):
    for container in containers(deployment):
        place = f"{title(deployment)}, container {container['name']}"
        names = {port["name"] for port in container.get("ports", [])}
        numbers = {port["containerPort"] for port in container.get("ports", [])}
        expect({"livenessProbe", "readinessProbe"} <= set(container), f"{place}: lacks probes")
        for probe in (container[name] for name in PROBES if name in container):
            port = next(action["port"] for kind, action in probe.items() if kind in ("httpGet", "grpc", "tcpSocket"))
            expect(port in names | numbers, f"{place}: probes the port {port}, which it does not have")
        resources = container.get("resources", {})
        expect({"cpu", "memory"} <= set(resources.get("requests", {})), f"{place}: does not say what it needs")
        expect("memory" in resources.get("limits", {}), f"{place}: has no memory limit")
        image = container["image"]
        expect(re.search(r":[^:/]*\d[^:/]*$", image), f"{place}: the image {image} has no version")
        for mount in container.get("volumeMounts", []):
            expect("subPath" not in mount, f"{place}: a subPath is never updated")


def check_references(cluster, deployment):
    pod = deployment["spec"]["template"]["spec"]
    name = title(deployment)
    wanted = [("ServiceAccount", pod["serviceAccountName"])] if "serviceAccountName" in pod else []
    for container in containers(deployment):
        for source in container.get("envFrom", []):
            wanted.append(("ConfigMap", source["configMapRef"]["name"]))
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                wanted.append(("Secret", variable["valueFrom"]["secretKeyRef"]["name"]))
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        expect(mounted <= {volume["name"] for volume in pod.get("volumes", [])}, f"{name}: mounts a volume it does not have")
    for volume in pod.get("volumes", []):
        if "configMap" in volume:
            wanted.append(("ConfigMap", volume["configMap"]["name"]))
        if "secret" in volume:
            wanted.append(("Secret", volume["secret"]["secretName"]))
    for kind, wanted_name in wanted:
        expect(cluster.named(kind, wanted_name), f"{name}: there is no {kind} {wanted_name}")


def check_selectors(cluster):
    for service in cluster.of("Service"):
        pods = cluster.selected(service["spec"]["selector"])
        expect(len(pods) == 1, f"{title(service)}: selects {len(pods)} deployments")
        for port in service["spec"]["ports"]:
            names = set().union(*map(port_names, pods))
            expect(port["targetPort"] in names, f"{title(service)}: no pod has the port {port['targetPort']}")
    for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for thing in cluster.of(kind):
            expect(cluster.selected(thing["spec"][path]["matchLabels"]), f"{title(thing)}: selects nothing")
    for policy in cluster.of("NetworkPolicy"):
        pods = cluster.selected(policy["spec"]["podSelector"]["matchLabels"])
        for port in (port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]):
            expect(port in set().union(*map(port_names, pods)), f"{title(policy)}: no pod has the port {port}")
    for scaler in cluster.of("HorizontalPodAutoscaler"):
        target = cluster.named("Deployment", scaler["spec"]["scaleTargetRef"]["name"])
        expect(target, f"{title(scaler)}: scales nothing")
        expect("replicas" not in target["spec"], f"{title(target)}: an apply would undo what {title(scaler)} did")
        expect(scaler["spec"]["minReplicas"] >= 2, f"{title(scaler)}: one replica cannot be replaced without a gap")
    for monitor in cluster.of("ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        services = [s for s in cluster.of("Service") if selects(labels, s["metadata"].get("labels", {}))]
        expect(len(services) == 1, f"{title(monitor)}: selects {len(services)} services")
        ports = {port["name"] for service in services for port in service["spec"]["ports"]}
        expect({e["port"] for e in monitor["spec"]["endpoints"]} <= ports, f"{title(monitor)}: scrapes no port of theirs")


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def check_sluice(cluster):
    """What only sluice needs; gives the settings."""
    found = [(pod, c) for pod in cluster.pods for c in containers(pod) if c["name"] == "sluice"]
    expect(len(found) == 1, f"there are {len(found)} containers called sluice")
    deployment, container = found[0]
    settings = dict(cluster.named("ConfigMap", container["envFrom"][0]["configMapRef"]["name"])["data"])
    pod = deployment["spec"]["template"]["spec"]
    at_most = seconds(settings["DRAIN_DELAY"]) + 2 * seconds(settings["DRAIN_TIMEOUT"])
    grace = pod["terminationGracePeriodSeconds"]
    expect(grace > at_most, f"{title(deployment)}: is killed after {grace} s, but may drain for {at_most} s")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for name in ("RATE_LIMIT_CONFIG", "REDIS_AUTH_FILE", "GRPC_UDS"):
        place = settings.get(name)
        if place:
            parts = {str(parent) for parent in pathlib.PurePath(place, "x").parents}
            expect(parts & set(mounts), f"{title(deployment)}: nothing is mounted where {name} points, {place}")
    rules = volumes[mounts[settings["RATE_LIMIT_CONFIG"]]]["configMap"]["name"]
    if "REDIS_AUTH_FILE" in settings:
        file = pathlib.PurePath(settings["REDIS_AUTH_FILE"])
        secret = cluster.named("Secret", volumes[mounts[str(file.parent)]]["secret"]["secretName"])
        expect(file.name in secret["stringData"], f"{title(secret)}: has no {file.name}")
    if "GRPC_UDS" in settings:
        check_socket(deployment, settings["GRPC_UDS"], mounts)
    else:
        named = [p["name"] for s in cluster.of("Service") for p in s["spec"]["ports"] if p["port"] == 8081]
        expect(named and all(name.startswith("grpc-") for name in named), "no Service has a grpc- port")
    host = settings.get("REDIS_URL", "").split(":")[0]
    if host.endswith(".svc.cluster.local"):
        expect(cluster.named("Service", host.split(".")[0]), f"there is no Service for {host}")
        expect(host.split(".")[1] == deployment["metadata"]["namespace"], f"{host} is in another namespace")
    return settings, cluster.named("ConfigMap", rules)["data"]


def check_socket(deployment, socket, mounts):
    volume = mounts[str(pathlib.PurePath(socket).parent)]
    pod = deployment["spec"]["template"]["spec"]
    spec = next(each for each in pod["volumes"] if each["name"] == volume)
    expect("emptyDir" in spec, f"{title(deployment)}: the socket's volume is no emptyDir")
    expect("fsGroup" in pod["securityContext"], f"{title(deployment)}: no group shares the socket")
    sharing = [c["name"] for c in containers(deployment) for m in c.get("volumeMounts", []) if m["name"] == volume]
    expect(sharing == ["sluice", "envoy"], f"{title(deployment)}: the socket is shared by {sharing}")


def main(built, rules_directory):
    with open(built, encoding="utf-8") as file:
        things = list(yaml.safe_load_all(file))
    for thing in things:
        check_schema(thing)
    # What follows relies on the shapes.
    settings, rules = ({}, {}) if wrong else check_together(things)
    for name, text in rules.items():
        pathlib.Path(rules_directory, name).write_text(text, encoding="utf-8")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    for name, value in settings.items():
        print(f"{name}={value}")
    return 1 if wrong else 0


def check_together(things):
    cluster = Cluster(things)
    expect(len({(t["kind"], t["metadata"]["name"]) for t in things}) == len(things), "something is there twice")
    for deployment in cluster.pods:
        check_restricted(deployment)
        check_containers(deployment)
        check_references(cluster, deployment)
    check_selectors(cluster)
    return ({}, {}) if wrong else check_sluice(cluster)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
