//go:build packages

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of deploy/kubernetes/penstock.yaml.
type manifests struct {
	set      appsv1.StatefulSet
	services map[string]*corev1.Service
	budget   policyv1.PodDisruptionBudget
	policy   networkingv1.NetworkPolicy
}

// readManifests decodes them strictly: a field that Kubernetes does not know fails the test.
func readManifests(t *testing.T) *manifests {
	t.Helper()
	all := &manifests{services: map[string]*corev1.Service{}}
	for document := range strings.SplitSeq(readFile(t, "../deploy/kubernetes/penstock.yaml"), "\n---\n") {
		var kind struct{ Kind string }
		must(t, yaml.Unmarshal([]byte(document), &kind))
		var into any
		switch kind.Kind {
		case "Service":
			service := new(corev1.Service)
			must(t, yaml.UnmarshalStrict([]byte(document), service))
			all.services[service.Name] = service
			continue
		case "StatefulSet":
			into = &all.set
		case "PodDisruptionBudget":
			into = &all.budget
		case "NetworkPolicy":
			into = &all.policy
		default:
			t.Fatalf("there is a %q", kind.Kind)
		}
		must(t, yaml.UnmarshalStrict([]byte(document), into))
	}
	return all
}

// The node knows every name that the services make: a browser, or the console behind a proxy, may use each of them.
func TestManifestNames(t *testing.T) {
	all := readManifests(t)
	said := " "
	for _, arg := range all.set.Spec.Template.Spec.Containers[0].Args {
		for _, flag := range []string{"--http-allowed-hosts=", "--broadcast-address="} {
			if list, ok := strings.CutPrefix(arg, flag); ok {
				said += strings.ReplaceAll(list, ",", " ") + " "
			}
		}
	}
	hosts := []string{"$(POD_NAME)." + all.set.Spec.ServiceName}
	for name := range all.services {
		hosts = append(hosts, name)
	}
	for _, host := range hosts {
		const space = ".$(POD_NAMESPACE)"
		for _, suffix := range []string{"", space, space + ".svc", space + ".svc.cluster.local"} {
			if !strings.Contains(said, " "+host+suffix+" ") {
				t.Errorf("%s is no name of the node: %s", host+suffix, said)
			}
		}
	}
}

// The objects fit together, and have what keeps a cluster whole.
func TestManifests(t *testing.T) {
	all := readManifests(t)
	pod := all.set.Spec.Template
	peers, client := all.services["penstock"], all.services["penstock-client"]
	if peers == nil || client == nil || all.set.Spec.ServiceName != peers.Name {
		t.Fatalf("the services are %v", all.services)
	}
	labels := fmt.Sprint(pod.Labels)
	for _, selector := range []map[string]string{
		all.set.Spec.Selector.MatchLabels, peers.Spec.Selector, client.Spec.Selector,
		all.budget.Spec.Selector.MatchLabels, all.policy.Spec.PodSelector.MatchLabels,
	} {
		if fmt.Sprint(selector) != labels {
			t.Errorf("a selector is %v, and the pods are %s", selector, labels)
		}
	}
	if all.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement || !peers.Spec.PublishNotReadyAddresses ||
		peers.Spec.ClusterIP != "None" || all.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("nodes could not find each other before they are ready, or two could be taken away at once")
	}
	c := pod.Spec.Containers[0]
	named := map[string]int32{}
	for _, p := range c.Ports {
		named[p.Name] = p.ContainerPort
		listens := fmt.Sprintf("=0.0.0.0:%d", p.ContainerPort)
		if !slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasSuffix(arg, listens) }) {
			t.Errorf("nothing listens on port %d", p.ContainerPort)
		}
	}
	for _, service := range all.services {
		for _, p := range service.Spec.Ports {
			if named[p.Name] != p.Port {
				t.Errorf("service %s has port %s=%d, and the container %d", service.Name, p.Name, p.Port, named[p.Name])
			}
		}
	}
	for path, probe := range map[string]*corev1.Probe{
		"/startupz": c.StartupProbe, "/readyz": c.ReadinessProbe, "/livez": c.LivenessProbe,
	} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "http" {
			t.Errorf("the probe for %s asks %v", path, probe.HTTPGet)
		}
	}
	for _, mount := range c.VolumeMounts {
		fits := func(name string) bool { return name == mount.Name }
		if !fits(all.set.Spec.VolumeClaimTemplates[0].Name) && !fits(pod.Spec.Volumes[0].Name) {
			t.Errorf("there is no volume %s", mount.Name)
		}
	}
	if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		s.Capabilities.Drop[0] != "ALL" || !*pod.Spec.SecurityContext.RunAsNonRoot ||
		*pod.Spec.SecurityContext.RunAsUser != containerUser {
		t.Errorf("the container may do too much: %+v", s)
	}
}

// Three processes with the command lines and the environment of the pods, each in a network of its own in which the
// pods' names resolve, become one cluster that passes the pods' probes.
func TestManifestsRun(t *testing.T) {
	all := readManifests(t)
	m := boot(t, dist)
	m.run("dpkg -i " + deb(newVersion) + `
		ip link add pods type bridge && ip addr add 10.9.0.254/24 dev pods && ip link set pods up
		mkdir -p /etc/penstock/cluster /pods && head -c 32 /dev/urandom | base64 >/etc/penstock/cluster/secret
		chown -R 10001:10001 /pods /etc/penstock && chmod 0440 /etc/penstock/cluster/secret`)
	c := all.set.Spec.Template.Spec.Containers[0]
	for i := range *all.set.Spec.Replicas {
		name := fmt.Sprintf("%s-%d", all.set.Name, i)
		m.run(fmt.Sprintf("echo 10.9.0.%d %s.%s.default.svc >>/etc/hosts", i+1, name, all.set.Spec.ServiceName))
	}
	for i := range *all.set.Spec.Replicas {
		name := fmt.Sprintf("%s-%d", all.set.Name, i)
		value := strings.NewReplacer("$(POD_NAME)", name, "$(POD_NAMESPACE)", "default")
		var args []string
		for _, arg := range c.Args {
			arg = strings.Replace(value.Replace(arg), "/var/lib/penstock", "/pods/"+name, 1)
			if strings.Contains(arg, "$(") {
				t.Fatalf("%s has a variable that the pod has not", arg)
			}
			args = append(args, "'"+arg+"'")
		}
		m.run(fmt.Sprintf(`name=%s address=10.9.0.%d
			ip netns add $name && ip link add $name type veth peer name eth0 netns $name
			ip link set $name master pods up
			ip -n $name addr add $address/24 dev eth0; ip -n $name link set eth0 up; ip -n $name link set lo up
			ip netns exec $name setpriv --reuid=%d --regid=%d --clear-groups penstock %s >/pods/$name.log 2>&1 &`,
			name, i+1, containerUser, containerUser, strings.Join(args, " ")))
	}
	t.Cleanup(func() { // before the machine ends
		if out, _ := m.try("tail -n 20 /pods/*.log"); t.Failed() {
			t.Log(out)
		}
	})
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		for i := range *all.set.Spec.Replicas {
			m.await(fmt.Sprintf("pod %d passes the probe %s", i, probe.HTTPGet.Path), func() bool {
				_, err := m.try(fmt.Sprintf("curl -sf http://10.9.0.%d:4151%s", i+1, probe.HTTPGet.Path))
				return err == nil
			})
		}
	}
	m.says("curl -sd hello -H 'Host: penstock-client' 'http://10.9.0.2:4151/pub?topic=orders'", "OK")
	m.says("penstock cluster health --wait 60s --http-address 10.9.0.1:4151", "healthy")
	m.says("penstock topic list --http-address 10.9.0.3:4151", "orders")
}

// The image has what its lines say, and runs as its user.
func TestImage(t *testing.T) {
	user := fmt.Sprintf("USER %d:%d\n", containerUser, containerUser)
	if text := readFile(t, "Containerfile"); !strings.Contains(text, user) {
		t.Error("Containerfile and the packages name different users")
	}
	runImage(t, filepath.Join(dist, newVersion), newVersion)
}
