package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/process"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  bctl version --json",
		Args:    args(cobra.NoArgs),
		RunE:    func(*cobra.Command, []string) error { return a.printVersion() },
	}
}

func (a *app) printVersion() error {
	version, commit := buildVersion()
	type versionJSON struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Go      string `json:"go"`
	}
	return a.result(versionJSON{version, commit, runtime.Version()}, "bctl %s (%s, %s)\n", version, commit, runtime.Version())
}

// buildVersion returns the version of this binary, and the commit that the Go command recorded.
func buildVersion() (version, commit string) {
	commit = "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return process.Version(), commit
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			commit += "+changes"
		}
	}
	return process.Version(), commit
}
