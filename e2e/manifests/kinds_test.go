package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/kedacore/keda/v2/version" // the module has the schemas of its objects, and nothing else of it is needed
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

const kedaAPI = "keda.sh/v1alpha1"

var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// decode fails for a field that its kind does not have. An object of KEDA has no Go type here.
func decode(text []byte) (runtime.Object, error) {
	var head struct{ APIVersion string }
	if err := yaml.Unmarshal(text, &head); err != nil {
		return nil, err
	}
	if head.APIVersion == kedaAPI {
		return nil, nil // TestObjectsOfKEDA looks at it
	}
	o, _, err := decoder.Decode(text, nil, nil)
	return o, err
}

// Every object that is not of KEDA has only fields that Kubernetes knows: making a fleet fails
// otherwise.
func TestOverlaysHaveWhatTheyShould(t *testing.T) {
	eachFleet(t, func(t *testing.T, f *fleet) {
		counts := map[string]int{}
		for _, o := range f.objects {
			counts[o.kind]++
			if o.namespace != "bctl" && o.kind != "Namespace" && o.kind != "PersistentVolume" {
				t.Errorf("%s %s is in namespace %q", o.kind, o.name, o.namespace)
			}
		}
		sites := map[string]int{"single-site": 1, "two-sites": 2}[f.overlay]
		for kind, want := range map[string]int{
			"Deployment": 4 + 2*sites, "PodDisruptionBudget": 4 + 2*sites, "Job": 1, "Pod": 1,
			"ScaledObject": 4 * (sites - 1), "TriggerAuthentication": sites - 1, "PodMonitor": 6 * (sites - 1),
		} {
			if counts[kind] != want {
				t.Errorf("%d of kind %s, want %d", counts[kind], kind, want)
			}
		}
	})
}

// A decoder that lets everything pass would let every other test pass.
func TestUnknownFieldsAreRefused(t *testing.T) {
	for _, text := range []string{
		"apiVersion: apps/v1\nkind: Deployment\nspec: {replica: 2}",
		"apiVersion: policy/v1\nkind: PodDisruptionBudget\nspec: {maxUnavailable: 1, maxUnavailable: 2}",
		"apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nspec: {podMetricsEndpoint: []}",
		"apiVersion: apps/v1beta1\nkind: Deployment",
	} {
		if o, err := decode([]byte(text)); err == nil {
			t.Errorf("%s\nis %+v", text, o)
		}
	}
	schema := kedaSchema(t, "scaledobjects")
	for _, text := range []string{
		"apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nspec: {scaleTargetRef: {name: a}, triggers: [], maxReplicas: 5}",
		"apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nspec: {scaleTargetRef: {name: a}}",
		"apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nspec: {scaleTargetRef: {name: a}, triggers: [], maxReplicaCount: many}",
	} {
		if check(t, schema, []byte(text)) == nil {
			t.Errorf("%s\nis taken for a ScaledObject", text)
		}
	}
}

func TestObjectsOfKEDA(t *testing.T) {
	schemas := map[string]*spec.Schema{
		"ScaledObject": kedaSchema(t, "scaledobjects"), "TriggerAuthentication": kedaSchema(t, "triggerauthentications"),
	}
	eachFleet(t, func(t *testing.T, f *fleet) {
		for _, o := range f.objects {
			if o.typed != nil {
				continue
			}
			if err := check(t, schemas[o.kind], o.yaml); err != nil {
				t.Errorf("%s %s: %v", o.kind, o.name, err)
			}
		}
	})
}

// Triggers and their authentications set exactly the parameters that KEDA's scaler for Postgres
// reads.
func TestTriggersAreWhatTheScalerReads(t *testing.T) {
	parameters := scalerParameters(t, "postgresql")
	eachFleet(t, func(t *testing.T, f *fleet) {
		for _, o := range f.scaledObjects(t) {
			for _, trigger := range o.Spec.Triggers {
				given := []string{"connection"} // of its TriggerAuthentication
				if trigger.Type != "postgresql" {
					t.Errorf("%s: scaler %q", o.Metadata.Name, trigger.Type)
				}
				for name := range trigger.Metadata {
					given = append(given, name)
					if !parameters[name].Metadata {
						t.Errorf("%s: the scaler does not read %q", o.Metadata.Name, name)
					}
				}
				for name, parameter := range parameters {
					if !parameter.Optional && !slices.Contains(given, name) {
						t.Errorf("%s: the scaler wants %q", o.Metadata.Name, name)
					}
				}
			}
		}
		for _, o := range f.triggerAuthentications(t) {
			for _, from := range o.Spec.ConfigMapTargetRef {
				if !parameters[from.Parameter].Authentication {
					t.Errorf("%s: the scaler does not take %q", o.Metadata.Name, from.Parameter)
				}
			}
		}
	})
}

// kedaDirectory is where the go command keeps KEDA's module.
func kedaDirectory(t *testing.T) string {
	t.Helper()
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kedacore/keda/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

// kedaSchema is that of KEDA's own custom resource definition, which lets no unknown field pass.
func kedaSchema(t *testing.T, resource string) *spec.Schema {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(kedaDirectory(t), "config/crd/bases/keda.sh_"+resource+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema *spec.Schema }
			}
		}
	}
	if err := yaml.Unmarshal(data, &definition); err != nil {
		t.Fatal(err)
	}
	schema := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	if kedaAPI != "keda.sh/"+definition.Spec.Versions[0].Name || schema == nil {
		t.Fatalf("no schema of %s for %s", resource, kedaAPI)
	}
	metadata := schema.Properties["metadata"]
	closeSchema(schema)
	schema.Properties["metadata"] = metadata // it is Kubernetes' own, and not described there
	return schema
}

// closeSchema has a schema refuse fields that it does not name. Kubernetes would drop them without
// a word.
func closeSchema(s *spec.Schema) {
	if preserve, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); preserve {
		return
	}
	if len(s.Properties) > 0 && s.AdditionalProperties == nil {
		s.AdditionalProperties = &spec.SchemaOrBool{Allows: false}
	}
	for name, property := range s.Properties {
		closeSchema(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		closeSchema(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		closeSchema(s.AdditionalProperties.Schema)
	}
}

func check(t *testing.T, schema *spec.Schema, text []byte) error {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	if schema == nil {
		return fmt.Errorf("no schema of its kind")
	}
	result := validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(value)
	return result.AsError()
}

type scalerParameter struct {
	Name           string `json:"name"`
	Optional       bool   `json:"optional"`
	Metadata       bool   `json:"metadataVariableReadable"`
	Authentication bool   `json:"triggerAuthenticationVariableReadable"`
}

// scalerParameters are what a scaler reads, as KEDA describes it.
func scalerParameters(t *testing.T, scaler string) map[string]scalerParameter {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(kedaDirectory(t), "schema/generated/scalers-schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Scalers []struct {
			Type       string
			Parameters []scalerParameter
		}
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	parameters := map[string]scalerParameter{}
	for _, s := range schema.Scalers {
		if s.Type != scaler {
			continue
		}
		for _, p := range s.Parameters {
			parameters[p.Name] = p
		}
	}
	if len(parameters) == 0 {
		t.Fatalf("KEDA has no scaler %s", scaler)
	}
	return parameters
}

// These types have the fields of KEDA's objects that the tests read.
type (
	named        struct{ Name string }
	scaledObject struct {
		Metadata named
		Spec     struct {
			ScaleTargetRef                   named
			MinReplicaCount, MaxReplicaCount int
			Fallback                         struct{ Replicas int }
			Triggers                         []struct {
				Type              string
				Metadata          map[string]string
				AuthenticationRef named
			}
		}
	}
	triggerAuthentication struct {
		Metadata named
		Spec     struct {
			ConfigMapTargetRef []struct{ Parameter, Name, Key string }
		}
	}
)

func (f *fleet) scaledObjects(t *testing.T) []scaledObject {
	return ofKEDA[scaledObject](t, f, "ScaledObject")
}

func (f *fleet) triggerAuthentications(t *testing.T) []triggerAuthentication {
	return ofKEDA[triggerAuthentication](t, f, "TriggerAuthentication")
}

func ofKEDA[T any](t *testing.T, f *fleet, kind string) (list []T) {
	t.Helper()
	for _, o := range f.objects {
		if o.kind != kind {
			continue
		}
		var v T
		if err := yaml.Unmarshal(o.yaml, &v); err != nil {
			t.Fatal(err)
		}
		list = append(list, v)
	}
	return list
}
