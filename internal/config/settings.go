package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
)

// A Setting describes one setting.
type Setting struct {
	Key     string // such as "store.region": its path in the file
	Env     string
	Flag    string // "": none
	Type    string // string, number, duration, boolean, list
	Default string
	Means   string // the value that a default of 0 stands for in a service; "": 0 itself
	Doc     string
	Secret  bool // never shown

	value reflect.Value
}

// Settings returns all settings, in the order of the documentation.
func Settings() []Setting { return settingsOf(&Config{}) }

func settingsOf(c *Config) []Setting {
	return collect(nil, "", reflect.ValueOf(c).Elem())
}

func collect(settings []Setting, prefix string, v reflect.Value) []Setting {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := prefix + f.Tag.Get("yaml")
		if v.Field(i).Kind() == reflect.Struct {
			settings = collect(settings, key+".", v.Field(i))
			continue
		}
		env := f.Tag.Get("env")
		if env == "" {
			env = "BCTL_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
		}
		settings = append(settings, Setting{
			Key: key, Env: env, Flag: f.Tag.Get("flag"), Type: typeName(v.Field(i)), Default: f.Tag.Get("default"), Means: f.Tag.Get("means"),
			Doc: f.Tag.Get("doc"), Secret: f.Tag.Get("secret") != "", value: v.Field(i),
		})
	}
	return settings
}

func typeName(v reflect.Value) string {
	switch v.Interface().(type) {
	case time.Duration:
		return "duration"
	case int:
		return "number"
	case bool:
		return "boolean"
	case []string:
		return "list"
	}
	return "string"
}

// set parses a value as it is written in the environment.
func (s *Setting) set(text string) error {
	if err := checkLocal(s.Key, text); err != nil {
		return err
	}
	switch p := s.value.Addr().Interface().(type) {
	case *string:
		*p = text
	case *[]string:
		*p = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*p = append(*p, part)
			}
		}
	case *bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		*p = v
	case *int:
		v, err := strconv.Atoi(text)
		if err != nil || v < 0 {
			return fmt.Errorf("%q is not a number of 0 or more", text)
		}
		*p = v
	case *time.Duration:
		v, err := time.ParseDuration(text)
		if err != nil || v < 0 {
			return fmt.Errorf("%q is not a duration (90s, 10m, 1h30m)", text)
		}
		*p = v
	}
	return nil
}

// setHere is set for a value in which paths are relative to the working directory.
func (s *Setting) setHere(text string, env func(string) (string, bool)) error {
	text, err := s.locate(text, "", env)
	if err != nil {
		return err
	}
	return s.set(text)
}

// applyYAML applies the settings in the file. Errors name file and line.
func applyYAML(file string, data []byte, settings []Setting, env func(string) (string, bool)) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %s: %w", file, strings.TrimPrefix(err.Error(), "yaml: "), backup.ErrInvalid)
	}
	if len(doc.Content) == 0 {
		return nil // an empty file
	}
	a := applier{file: file, settings: settings, env: env, seen: map[string]int{}}
	return a.mapping("", doc.Content[0])
}

type applier struct {
	file     string
	settings []Setting
	env      func(string) (string, bool)
	seen     map[string]int // key to line
}

func (a *applier) fail(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s: %w", a.file, n.Line, fmt.Sprintf(format, args...), backup.ErrInvalid)
}

func (a *applier) mapping(prefix string, n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return a.fail(n, "%s must be a group of settings", strings.TrimSuffix("the file."+prefix, "."))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + name.Value
		if line, ok := a.seen[key]; ok {
			return a.fail(name, "%s is already set in line %d", key, line)
		}
		a.seen[key] = name.Line
		if err := a.one(key, name, value); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) one(key string, name, value *yaml.Node) error {
	i := slices.IndexFunc(a.settings, func(s Setting) bool { return s.Key == key })
	if i < 0 {
		group := slices.ContainsFunc(a.settings, func(s Setting) bool { return strings.HasPrefix(s.Key, key+".") })
		switch {
		case !group:
			return a.fail(name, "no setting is called %s", key)
		case value.Tag == "!!null":
			return nil
		}
		return a.mapping(key+".", value)
	}
	s := &a.settings[i]
	text := value.Value
	switch {
	case value.Tag == "!!null":
		return nil
	case value.Kind == yaml.SequenceNode && s.Type == "list":
		var parts []string
		for _, part := range value.Content {
			if part.Kind != yaml.ScalarNode || strings.Contains(part.Value, ",") {
				return a.fail(part, "%s: an element must be a plain text without commas", key)
			}
			parts = append(parts, part.Value)
		}
		text = strings.Join(parts, ",")
	case value.Kind != yaml.ScalarNode:
		return a.fail(value, "%s is a %s", key, s.Type)
	}
	text, err := s.locate(text, filepath.Dir(a.file), a.env)
	if err == nil {
		err = s.set(text)
	}
	if err != nil {
		return fmt.Errorf("%s:%d: %s: %w: %w", a.file, value.Line, key, err, backup.ErrInvalid)
	}
	return nil
}
