package lock

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"testing"
)

// Every class of order.go has one place in the order.
func TestEveryClassHasOnePlace(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "order.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared, ordered []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			declared = append(declared, spec.Name.Name)
		}
		return true
	})
	for _, class := range order {
		ordered = append(ordered, reflect.TypeOf(class).Name())
	}
	slices.Sort(declared)
	slices.Sort(ordered)
	if !slices.Equal(declared, ordered) {
		t.Errorf("classes %v, in the order %v", declared, ordered)
	}
}
