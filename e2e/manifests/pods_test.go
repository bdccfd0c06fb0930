package manifests

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// readsEveryFile reports whether a pod is a worker of an overlay with components/read-every-file.
func readsEveryFile(f *fleet, p podOf) bool {
	component := p.labels["app.kubernetes.io/component"]
	return f.overlay == "two-sites" && (component == "walker" || component == "reader")
}

func TestRights(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		s := p.spec.SecurityContext
		if is(p.spec.AutomountServiceAccountToken, true) || is(p.spec.EnableServiceLinks, true) || p.spec.HostNetwork || p.spec.HostPID || p.spec.HostIPC {
			t.Error("it has more of the cluster than it needs")
		}
		if s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Fatal("its system calls are not filtered")
		}
		if s.FSGroup == nil || *s.FSGroup != 65532 { // or it cannot read its key
			t.Errorf("its files are of group %v", s.FSGroup)
		}
		root := readsEveryFile(f, p)
		if is(s.RunAsNonRoot, false) != root || s.RunAsUser == nil || (*s.RunAsUser == 0) != root {
			t.Errorf("user %v, want root: %v", s.RunAsUser, root)
		}
		for _, c := range p.spec.Containers {
			s := c.SecurityContext
			if s == nil || is(s.ReadOnlyRootFilesystem, false) || is(s.AllowPrivilegeEscalation, true) || s.Privileged != nil || s.Capabilities == nil ||
				len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
				t.Errorf("container %s: %+v", c.Name, s)
				continue
			}
			if add := s.Capabilities.Add; (len(add) == 1 && add[0] == "DAC_READ_SEARCH") != root || len(add) > 1 {
				t.Errorf("container %s has capabilities %v", c.Name, add)
			}
			for _, m := range c.VolumeMounts {
				if !m.ReadOnly && m.MountPath != "/tmp" {
					t.Errorf("container %s can write to %s", c.Name, m.MountPath)
				}
			}
		}
	})
}

// is reports whether a setting is what Kubernetes makes of one that is not there, or that value.
func is(setting *bool, absent bool) bool { return setting == nil || *setting == absent }

// The namespace lets its pods run: Kubernetes' own check of the level that it enforces. It enforces
// the strictest, unless a worker reads every file, which no level but "privileged" lets it.
func TestNamespaceAdmitsItsPods(t *testing.T) {
	admission, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	evaluate := func(level api.Level, p podOf) policy.AggregateCheckResult {
		return policy.AggregateCheckResults(admission.EvaluatePod(
			api.LevelVersion{Level: level, Version: api.LatestVersion()}, &metav1.ObjectMeta{Labels: p.labels}, p.spec))
	}
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		namespace, ok := find[*corev1.Namespace](f, "bctl")
		if !ok {
			t.Fatal("there is no namespace")
		}
		level, err := api.ParseLevel(namespace.Labels[api.EnforceLevelLabel])
		if err != nil {
			t.Fatal(err)
		}
		if result := evaluate(level, p); !result.Allowed {
			t.Errorf("level %s: %s", level, result.ForbiddenDetail())
		}
		if allowed := evaluate(api.LevelRestricted, p).Allowed; allowed == readsEveryFile(f, p) {
			t.Errorf("level restricted allows it: %v", allowed)
		}
		if f.overlay == "single-site" && level != api.LevelRestricted {
			t.Errorf("the namespace enforces %s", level)
		}
	})
}

// Each container has limits, and Go knows of its memory's before the kernel ends it.
func TestLimits(t *testing.T) {
	eachPod(t, func(t *testing.T, _ *fleet, p podOf) {
		for _, c := range p.spec.Containers {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
				if request.IsZero() || limit.IsZero() || request.Cmp(limit) > 0 {
					t.Errorf("%s of %s: %v to %v", name, c.Name, &request, &limit)
				}
			}
			if p.replicas == 0 {
				continue
			}
			text := value(c, "GOMEMLIMIT")
			soft, err := resource.ParseQuantity(text[:max(0, len(text)-1)]) // Go says MiB, Kubernetes Mi
			if err != nil {
				t.Errorf("GOMEMLIMIT %q: %v", text, err)
				continue
			}
			if limit := c.Resources.Limits[corev1.ResourceMemory]; soft.Cmp(limit) >= 0 || soft.Value() < limit.Value()*8/10 {
				t.Errorf("GOMEMLIMIT is %v of %v", &soft, &limit)
			}
		}
	})
}

func value(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

var stopTimeout = regexp.MustCompile(`DefaultStopTimeout += (\d+) \* time\.Second`)

// A service has the time that it takes to stop, and some more.
func TestGraceIsLongerThanStopping(t *testing.T) {
	eachPod(t, func(t *testing.T, _ *fleet, p podOf) {
		source := map[string]string{"walker": "walker/walk", "reader": "reader/read", "committer": "committer/commit"}[p.labels["app.kubernetes.io/component"]]
		if source == "" {
			return // it does not work for others
		}
		code, err := os.ReadFile(repository + "/services/" + source + "/service.go")
		if err != nil {
			t.Fatal(err)
		}
		found := stopTimeout.FindSubmatch(code)
		if found == nil {
			t.Fatal("how long does it take to stop?")
		}
		seconds, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if text := value(p.spec.Containers[0], "BCTL_WORKER_STOP_TIMEOUT"); text != "" {
			t.Fatalf("worker.stop_timeout is %s: compare the grace with that", text)
		}
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if p.spec.TerminationGracePeriodSeconds != nil {
			grace = *p.spec.TerminationGracePeriodSeconds
		}
		if grace < seconds+10 {
			t.Errorf("it is killed after %d s, and takes %d to stop", grace, seconds)
		}
	})
}

// A node can always be drained, and that never ends all pods of a Deployment that has several.
func TestBudgets(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		for _, p := range f.pods() {
			if p.replicas == 0 {
				continue
			}
			for _, b := range all[*policyv1.PodDisruptionBudget](f) {
				if !selects(t, b.Spec.Selector, p.labels) {
					continue
				}
				if b.Spec.MaxUnavailable == nil || b.Spec.UnhealthyPodEvictionPolicy == nil || *b.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
					t.Errorf("budget %s: %+v", b.Name, b.Spec)
					continue
				}
				gone, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, p.replicas, true)
				if err != nil || gone < 1 || p.replicas > 1 && gone >= p.replicas {
					t.Errorf("budget %s lets %d of %d go (%v)", b.Name, gone, p.replicas, err)
				}
			}
		}
	})
}
