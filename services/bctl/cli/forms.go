package cli

import (
	"encoding/csv"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/parquetfile"
)

// A tableForm is the form of a table for other programs.
type tableForm struct {
	csv     bool
	parquet string // the file; "": none
}

func (f *tableForm) flags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.csv, "csv", false, "print comma-separated values")
	f.parquetFlag(flags)
}

func (f *tableForm) parquetFlag(flags *pflag.FlagSet) {
	flags.StringVar(&f.parquet, "parquet", "", "write Apache Parquet to `FILE`, instead of printing; a regular file is replaced")
}

// check fails if more than one form is asked for.
func (f *tableForm) check(flags *pflag.FlagSet, json bool) error {
	n := 0
	for _, is := range []bool{json, f.csv, flags.Changed("parquet")} {
		if is {
			n++
		}
	}
	switch {
	case n > 1:
		return usage("--json, --csv and --parquet exclude each other")
	case flags.Changed("parquet") && f.parquet == "":
		return usage("--parquet: the name of the file is empty")
	}
	return nil
}

// isSet reports whether the table is for other programs.
func (f *tableForm) isSet() bool { return f.csv || f.parquet != "" }

// write writes a table in the form that is set. For CSV, cells returns the cells of a row.
func writeTable[T any](a *app, f *tableForm, rows []T, head []string, cells func(*T) []string) error {
	if f.csv {
		w := csv.NewWriter(a.out)
		lines := [][]string{head}
		for n := range rows {
			lines = append(lines, cells(&rows[n]))
		}
		return w.WriteAll(lines)
	}
	w, err := parquetfile.Create[T](f.parquet)
	if err != nil {
		return err
	}
	defer w.Discard()
	for n := range rows {
		if err := w.Add(rows[n], textBytes); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	a.note("%s: %s", display(f.parquet), counted(len(rows), "row"))
	return nil
}

// textBytes is about the length of the texts of a row of a table that is in memory anyhow.
const textBytes = 100

// validText returns a text as JSON has it: each byte that is not UTF-8 is replaced.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return string([]rune(text))
}
