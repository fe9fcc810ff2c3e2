package core

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The package decides and does nothing else. Whatever could reach a clock, a file, a
// socket, a lock or another goroutine stays out, and so does the random order of maps.
func TestPure(t *testing.T) {
	allowed := map[string]bool{
		"cmp": true, "encoding/binary": true, "errors": true, "fmt": true, "math/bits": true, "path": true, "regexp": true,
		"slices": true, "strings": true,
		"penstock/segment": true,
	}
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
		maps := map[string]bool{}
		for _, spec := range file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !allowed[path] {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%s: goroutines and channels have no place here", set.Position(n.Pos()))
			case *ast.Field:
				if _, isMap := n.Type.(*ast.MapType); isMap {
					for _, name := range n.Names {
						maps[name.Name] = true
					}
				}
			case *ast.RangeStmt:
				if sel, ok := n.X.(*ast.SelectorExpr); ok && (maps[sel.Sel.Name] || sel.Sel.Name == "clients") {
					t.Errorf("%s: a map's order reaches a result", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if checked < 10 {
		t.Fatalf("only %d files checked", checked)
	}
}
