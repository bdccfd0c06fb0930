package entindex

import (
	"reflect"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent/schema"
)

// Each field of Counts has the column with its name in JSON.
func TestCountColumns(t *testing.T) {
	var c backup.Counts
	columns := map[any]string{}
	for _, n := range schema.CountIntegers(&c) {
		columns[n.Value] = n.Column
	}
	for _, n := range schema.CountSeconds(&c) {
		columns[n.Value] = n.Column
	}
	fields := reflect.ValueOf(&c).Elem()
	if len(columns) != fields.NumField() || len(countColumns()) != fields.NumField() {
		t.Errorf("%d columns for %d fields", len(countColumns()), fields.NumField())
	}
	for i := range fields.NumField() {
		field := fields.Type().Field(i)
		if got := columns[fields.Field(i).Addr().Interface()]; got != field.Tag.Get("json") {
			t.Errorf("%s is in column %q", field.Name, got)
		}
	}
}
