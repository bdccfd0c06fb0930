package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A podOf is a pod as something of the overlay makes it.
type podOf struct {
	name     string // kind and name of what makes it
	labels   labels.Set
	spec     *corev1.PodSpec
	replicas int // 0: it is made once, and ends
}

func (f *fleet) pods() (pods []podOf) {
	for _, o := range f.objects {
		switch made := o.typed.(type) {
		case *appsv1.Deployment:
			replicas := 1 // Kubernetes' default
			if made.Spec.Replicas != nil {
				replicas = int(*made.Spec.Replicas)
			}
			pods = append(pods, podOf{"Deployment " + o.name, made.Spec.Template.Labels, &made.Spec.Template.Spec, replicas})
		case *batchv1.Job:
			pods = append(pods, podOf{"Job " + o.name, made.Spec.Template.Labels, &made.Spec.Template.Spec, 0})
		case *corev1.Pod:
			pods = append(pods, podOf{"Pod " + o.name, made.Labels, &made.Spec, 0})
		}
	}
	return pods
}

func eachPod(t *testing.T, test func(t *testing.T, f *fleet, p podOf)) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		for _, p := range f.pods() {
			t.Run(p.name, func(t *testing.T) { test(t, f, p) })
		}
	})
}

func selects(t *testing.T, selector *metav1.LabelSelector, of labels.Set) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(of)
}

// Who selects pods selects just those that are meant: a Deployment those that it makes, a budget
// those of one Deployment, and nobody none.
func TestSelectors(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		chosen := func(selector *metav1.LabelSelector) (names []string) {
			for _, p := range f.pods() {
				if selects(t, selector, p.labels) {
					names = append(names, p.name)
				}
			}
			return names
		}
		want := func(who string, selector *metav1.LabelSelector, want ...string) {
			if got := chosen(selector); !slices.Equal(got, want) {
				t.Errorf("%s selects %q, want %q", who, got, want)
			}
		}
		for _, d := range f.deployments() {
			want("Deployment "+d.Name, d.Spec.Selector, "Deployment "+d.Name)
			for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
				want("spread of "+d.Name, spread.LabelSelector, "Deployment "+d.Name)
			}
			if _, ok := find[*policyv1.PodDisruptionBudget](f, d.Name); !ok {
				t.Errorf("Deployment %s has no disruption budget", d.Name)
			}
		}
		for _, b := range all[*policyv1.PodDisruptionBudget](f) {
			want("budget "+b.Name, b.Spec.Selector, "Deployment "+b.Name)
		}
		for _, m := range all[*monitoringv1.PodMonitor](f) {
			for _, name := range chosen(&m.Spec.Selector) {
				if name != "Deployment "+m.Name && !strings.HasPrefix(name, "Deployment "+m.Name+"-") {
					t.Errorf("PodMonitor %s selects %s", m.Name, name)
				}
			}
			if len(chosen(&m.Spec.Selector)) == 0 {
				t.Errorf("PodMonitor %s selects nothing", m.Name)
			}
		}
		for _, p := range all[*networkingv1.NetworkPolicy](f) {
			if len(chosen(&p.Spec.PodSelector)) == 0 {
				t.Errorf("NetworkPolicy %s selects nothing", p.Name)
			}
		}
	})
}

// Who talks to whom, as docs/kubernetes.md has it in a table: TCP ports out of each pod, and into
// it.
func TestNetworkPolicies(t *testing.T) {
	const nats, postgres, store = 4222, 5432, 443
	want := map[string][]int{
		"committer": {store, nats, postgres}, "reader": {store, nats, postgres}, "operator": {store, nats, postgres}, "pruner": {store, nats, postgres}, "scrubber": {store, nats, postgres},
		"walker": {nats, postgres}, "migrate": {postgres}, "mirror": {store},
	}
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		var out []int
		for _, policy := range all[*networkingv1.NetworkPolicy](f) {
			if !selects(t, &policy.Spec.PodSelector, p.labels) {
				continue
			}
			for _, rule := range policy.Spec.Egress {
				if len(rule.Ports) == 0 {
					t.Errorf("NetworkPolicy %s lets it reach every port", policy.Name)
				}
				for _, port := range rule.Ports {
					if port.Port.IntValue() != 53 {
						out = append(out, port.Port.IntValue())
					}
				}
			}
			for _, rule := range policy.Spec.Ingress {
				if len(rule.From) != 1 || len(rule.Ports) != 1 || rule.Ports[0].Port.String() != "http" {
					t.Errorf("NetworkPolicy %s lets others reach it: %+v", policy.Name, rule)
				}
			}
		}
		slices.Sort(out)
		if component := p.labels["app.kubernetes.io/component"]; !slices.Equal(out, want[component]) {
			t.Errorf("it may reach %v, want %v", out, want[component])
		}
		// A pod without a policy of its own reaches only the name service.
		deny, ok := find[*networkingv1.NetworkPolicy](f, "bctl")
		if !ok || len(deny.Spec.PolicyTypes) != 2 || len(deny.Spec.Ingress) != 0 || !selects(t, &deny.Spec.PodSelector, p.labels) {
			t.Errorf("what no policy allows is not denied: %+v", deny)
		}
	})
}

// Each pod mounts volumes that it has, and has no volume that it does not mount.
func TestVolumes(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		volumes := map[string]bool{}
		for _, v := range p.spec.Volumes {
			volumes[v.Name] = false
			switch {
			case v.Secret != nil:
				if _, ok := find[*corev1.Secret](f, v.Secret.SecretName); !ok {
					t.Errorf("there is no Secret %s", v.Secret.SecretName)
				}
			case v.PersistentVolumeClaim != nil:
				if _, ok := find[*corev1.PersistentVolumeClaim](f, v.PersistentVolumeClaim.ClaimName); !ok {
					t.Errorf("there is no claim %s", v.PersistentVolumeClaim.ClaimName)
				}
			case v.EmptyDir != nil:
				if v.EmptyDir.SizeLimit.IsZero() {
					t.Errorf("volume %s has no limit", v.Name)
				}
			default:
				t.Errorf("volume %s is of a kind that no test knows", v.Name)
			}
		}
		for _, c := range p.spec.Containers {
			for _, m := range c.VolumeMounts {
				if _, ok := volumes[m.Name]; !ok {
					t.Errorf("there is no volume %s", m.Name)
				}
				volumes[m.Name] = true
			}
		}
		for name, mounted := range volumes {
			if !mounted {
				t.Errorf("volume %s is not mounted", name)
			}
		}
	})
}

// A claim gets the volume that is meant for it, which is read-only.
func TestFilers(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		claims := map[string]bool{}
		for _, claim := range all[*corev1.PersistentVolumeClaim](f) {
			claims[claim.Name] = true
			volume, ok := find[*corev1.PersistentVolume](f, claim.Spec.VolumeName)
			if !ok {
				t.Errorf("there is no volume %s", claim.Spec.VolumeName)
				continue
			}
			if ref := volume.Spec.ClaimRef; ref == nil || ref.Name != claim.Name || ref.Namespace != claim.Namespace {
				t.Errorf("volume %s is for another claim: %+v", volume.Name, ref)
			}
			if !volume.Spec.NFS.ReadOnly || !slices.Contains(volume.Spec.MountOptions, "ro") || volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
				t.Errorf("volume %s can be written, or is recycled", volume.Name)
			}
			if fmt.Sprint(volume.Spec.AccessModes) != fmt.Sprint(claim.Spec.AccessModes) || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "" {
				t.Errorf("claim %s would not be given volume %s", claim.Name, volume.Name)
			}
		}
		// Each filer is at one site, and its walkers and readers see it at the same place.
		seen := map[string][]string{} // by claim: role, site and path
		for _, p := range f.pods() {
			for _, v := range p.spec.Volumes {
				if v.PersistentVolumeClaim == nil {
					continue
				}
				for _, m := range p.spec.Containers[0].VolumeMounts {
					if m.Name == v.Name {
						seen[v.PersistentVolumeClaim.ClaimName] = append(seen[v.PersistentVolumeClaim.ClaimName],
							p.labels["app.kubernetes.io/component"]+" "+p.labels["site"]+" "+m.MountPath)
						if !m.ReadOnly || !v.PersistentVolumeClaim.ReadOnly {
							t.Errorf("%s can write to %s", p.name, m.MountPath)
						}
					}
				}
			}
		}
		if len(claims) == 0 || len(seen) != len(claims) {
			t.Errorf("claims %v, mounted %v", slices.Sorted(maps.Keys(claims)), seen)
		}
		for claim, by := range seen {
			slices.Sort(by)
			if len(by) != 2 || strings.Replace(by[0], "reader", "walker", 1) != by[1] || !strings.HasSuffix(by[0], "/filers/"+claim) {
				t.Errorf("filer %s is seen by %q", claim, by)
			}
		}
	})
}

// KEDA scales Deployments that exist, and that say nothing else about their number, by the work of
// their own site.
func TestScaling(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		scaled := map[string]bool{}
		for _, o := range f.scaledObjects(t) {
			d, ok := find[*appsv1.Deployment](f, o.Spec.ScaleTargetRef.Name)
			if !ok || o.Metadata.Name != d.Name {
				t.Errorf("ScaledObject %s is for %s", o.Metadata.Name, o.Spec.ScaleTargetRef.Name)
				continue
			}
			scaled[d.Name] = true
			for _, trigger := range o.Spec.Triggers {
				query := trigger.Metadata["query"]
				table := map[string]string{"walker": "walk_tasks AS", "reader": "read_batches AS"}[d.Labels["app.kubernetes.io/component"]]
				if !strings.Contains(query, "f.site = '"+d.Labels["site"]+"'") || !strings.Contains(query, table) {
					t.Errorf("%s is scaled by %s", d.Name, query)
				}
				found := false
				for _, a := range f.triggerAuthentications(t) {
					found = found || a.Metadata.Name == trigger.AuthenticationRef.Name
				}
				if !found {
					t.Errorf("there is no TriggerAuthentication %s", trigger.AuthenticationRef.Name)
				}
			}
			if o.Spec.MaxReplicaCount <= o.Spec.MinReplicaCount || o.Spec.Fallback.Replicas > o.Spec.MaxReplicaCount {
				t.Errorf("%s: %+v", o.Metadata.Name, o.Spec)
			}
		}
		for _, d := range f.deployments() {
			if scaled[d.Name] == (d.Spec.Replicas != nil) {
				t.Errorf("%s: scaled by KEDA: %v, replicas %v", d.Name, scaled[d.Name], d.Spec.Replicas)
			}
		}
		for _, a := range f.triggerAuthentications(t) {
			for _, from := range a.Spec.ConfigMapTargetRef {
				if m, ok := find[*corev1.ConfigMap](f, from.Name); !ok || m.Data[from.Key] == "" {
					t.Errorf("there is no %s in ConfigMap %s", from.Key, from.Name)
				}
			}
		}
	})
}

// Prometheus finds the port, and the certificate that it shows.
func TestPodMonitors(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		for _, m := range all[*monitoringv1.PodMonitor](f) {
			for _, e := range m.Spec.PodMetricsEndpoints {
				c := e.TLSConfig
				for _, s := range []*corev1.SecretKeySelector{c.CA.Secret, c.Cert.Secret, c.KeySecret} {
					if secret, ok := find[*corev1.Secret](f, s.Name); !ok || len(secret.Data[s.Key]) == 0 {
						t.Errorf("%s: there is no %s in Secret %s", m.Name, s.Key, s.Name)
					}
				}
				for _, p := range f.pods() {
					if selects(t, &m.Spec.Selector, p.labels) && portNamed(p, *e.Port) == 0 {
						t.Errorf("%s has no port %s", p.name, *e.Port)
					}
				}
			}
		}
	})
}

func portNamed(p podOf, name string) int {
	for _, port := range p.spec.Containers[0].Ports {
		if port.Name == name {
			return int(port.ContainerPort)
		}
	}
	return 0
}
