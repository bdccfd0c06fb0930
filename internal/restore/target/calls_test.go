//go:build linux

package target

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// changing are the functions of packages unix and os that change a file system.
var changing = []string{
	"Mkdirat", "Mkdir", "MkdirAll", "Mknodat", "Mknod", "Symlinkat", "Symlink", "Linkat", "Link", "Unlinkat", "Unlink", "Rmdir", "Remove", "RemoveAll",
	"Renameat", "Renameat2", "Rename", "Pwrite", "Write", "WriteFile", "Ftruncate", "Truncate", "Fallocate",
	"Fchown", "Fchownat", "Lchown", "Chown", "Fchmod", "Fchmodat", "Chmod", "Setxattr", "Lsetxattr", "Fsetxattr",
	"Removexattr", "Lremovexattr", "Fremovexattr", "UtimesNanoAt", "Utimes", "Futimes", "Chtimes",
	"Create", "OpenFile", "O_CREAT",
}

// All calls that change the target are in calls.go, in which tests can make them fail, and each of
// them calls the fault function.
func TestCallsAreInOnePlace(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		must(t, err)
		for _, decl := range file.Decls {
			changes, asks := "", false
			ast.Inspect(decl, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if slices.Contains([]string{"before", "after", "change"}, sel.Sel.Name) {
					asks = true
				}
				pkg, ok := sel.X.(*ast.Ident)
				raw := strings.HasPrefix(sel.Sel.Name, "SYS_") && sel.Sel.Name != "SYS_LISTXATTRAT"
				if ok && (pkg.Name == "unix" || pkg.Name == "os") && (raw || slices.Contains(changing, sel.Sel.Name)) {
					changes = pkg.Name + "." + sel.Sel.Name
				}
				return true
			})
			if changes != "" && (name != "calls.go" || !asks) {
				t.Errorf("%s: %s is called where tests cannot make it fail", files.Position(decl.Pos()), changes)
			}
		}
	}
}
