package aio

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// Touching mapped bytes ends the process if the device cannot read the page. Only these functions of mapping.go may
// name the bytes: those that only measure or pass addresses to the kernel, and those that read under guard. Nothing
// outside this package can.
func TestMappedBytesAreTouchedUnderGuard(t *testing.T) {
	allowed := map[string]bool{
		"Size": true, "Copy": true, "Populate": true, "populate": true, "touch": true, "Unmap": true, "mappedAt": true,
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "mapping.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "mem" {
				if found++; !allowed[fn.Name.Name] {
					t.Errorf("%s: %s touches mapped bytes", set.Position(s.Pos()), fn.Name.Name)
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("mapping.go does not name mapped bytes: this test looks at nothing")
	}
}
