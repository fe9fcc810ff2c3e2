package puretest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Rules are what a package may use besides computing.
type Rules struct {
	Imports []string // everything that it may import
	Maps    bool     // it may have maps as long as no result depends on their order: it never ranges over one
	// Foreign lists the names that it may use of an imported package; a package not listed here may be used as a whole.
	Foreign  map[string][]string
	MinFiles int // the least number of files, to be sure that the check has found the package
}

// Check reports every place where the package in the current directory breaks the rules. It ignores the package's
// tests.
func Check(t *testing.T, r *Rules) {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		checked++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !slices.Contains(r.Imports, path) {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
		r.checkFile(t, set, file)
	}
	if checked < r.MinFiles {
		t.Fatalf("only %d files checked", checked)
	}
}

func (r *Rules) checkFile(t *testing.T, set *token.FileSet, file *ast.File) {
	t.Helper()
	maps := map[string]bool{} // names of fields that are maps
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
			t.Errorf("%s: goroutines and channels have no place here", set.Position(n.Pos()))
		case *ast.MapType:
			if !r.Maps {
				t.Errorf("%s: a map's order could reach a result", set.Position(n.Pos()))
			}
		case *ast.Field:
			if _, isMap := n.Type.(*ast.MapType); isMap {
				for _, name := range n.Names {
					maps[name.Name] = true
				}
			}
		case *ast.RangeStmt:
			if sel, ok := n.X.(*ast.SelectorExpr); ok && maps[sel.Sel.Name] {
				t.Errorf("%s: a map's order reaches a result", set.Position(n.Pos()))
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				break
			}
			if names, limited := r.Foreign[x.Name]; limited && !slices.Contains(names, n.Sel.Name) {
				t.Errorf("%s: %s.%s has no place here", set.Position(n.Pos()), x.Name, n.Sel.Name)
			}
		}
		return true
	})
}
