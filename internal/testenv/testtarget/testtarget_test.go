package testtarget_test

import (
	"os"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

func TestNeed(t *testing.T) {
	for setting, want := range map[string]bool{"": false, "long": false, "long,s3": true, "s3": true, "all": true, "s3x": false} {
		t.Setenv(testtarget.Setting, setting)
		skipped := true
		t.Run("with "+setting, func(t *testing.T) {
			t.Cleanup(func() { skipped = t.Skipped() })
			testtarget.Need(t, testtarget.S3)
		})
		if skipped == want {
			t.Errorf("%s=%s: skipped: %t", testtarget.Setting, setting, skipped)
		}
	}
}

// A skip message names a target that exists, and the target runs the test.
func TestTargetsAreInTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []testtarget.Target{testtarget.S3, testtarget.Upgrade, testtarget.Manifests, testtarget.Long, testtarget.Exhaustive} {
		_, rule, is := strings.Cut(string(makefile), "\ntest-"+string(target)+":")
		rule, _, _ = strings.Cut(rule, "\n\n")
		if !is || !strings.Contains(rule, testtarget.Setting+"="+string(target)) {
			t.Errorf("the Makefile has no test-%s that sets %s", target, testtarget.Setting)
		}
	}
}
