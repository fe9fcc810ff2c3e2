package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sources is what the Go files of the tree declare, but those of tests.
type sources struct {
	parsed   map[string]*ast.File       // by path, also those of tests
	members  map[string]map[string]bool // of types, by the type's name: fields, methods and what is embedded
	packages map[string]map[string]bool // what packages declare, by the package's name
	imported map[string]bool            // names of all packages that are imported
}

func parseTree(t *testing.T) *sources {
	t.Helper()
	s := &sources{
		parsed: map[string]*ast.File{}, members: map[string]map[string]bool{},
		packages: map[string]map[string]bool{}, imported: map[string]bool{},
	}
	set := token.NewFileSet()
	for _, path := range files(t, ".go") {
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		s.parsed[path] = f
		if !strings.HasSuffix(path, "_test.go") {
			s.learn(f)
		}
	}
	return s
}

func put(to map[string]map[string]bool, key, value string) {
	if to[key] == nil {
		to[key] = map[string]bool{}
	}
	to[key][value] = true
}

func (s *sources) learn(f *ast.File) {
	pkg := strings.TrimSuffix(f.Name.Name, "_test")
	put(s.packages, pkg, "")
	for _, i := range f.Imports {
		s.imported[filepath.Base(strings.Trim(i.Path.Value, `"`))] = true
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				put(s.packages, pkg, d.Name.Name)
			} else {
				put(s.members, typeName(d.Recv.List[0].Type), d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						put(s.packages, pkg, n.Name)
					}
				case *ast.TypeSpec:
					put(s.packages, pkg, spec.Name.Name)
					s.learnType(spec)
				}
			}
		}
	}
}

func (s *sources) learnType(spec *ast.TypeSpec) {
	put(s.members, spec.Name.Name, "")
	var list *ast.FieldList
	switch of := spec.Type.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, n := range f.Names {
			put(s.members, spec.Name.Name, n.Name)
		}
		if len(f.Names) == 0 {
			put(s.members, spec.Name.Name, typeName(f.Type))
		}
	}
}

// typeName is the name of a type without its package, its pointer and its parameters.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	}
	return ""
}

// has says whether a type of that name, or what it embeds, has the member.
func (s *sources) has(typ, member string, depth int) bool {
	if s.members[typ][member] {
		return true
	}
	for embedded := range s.members[typ] {
		if depth > 0 && embedded != typ && s.members[embedded] != nil && s.has(embedded, member, depth-1) {
			return true
		}
	}
	return false
}

// "Type.member" and "package.Name" in backquotes are there: the type has that member, the package declares that name.
// A name that was made public, or moved to another package, keeps the last word that TestNamesAreInTheTree finds.
func TestMembersAreTheirs(t *testing.T) {
	s := parseTree(t)
	for _, doc := range append(inTree, "glossary.md") {
		for _, m := range code.FindAllStringSubmatch(fence.ReplaceAllString(read(t, doc), ""), -1) {
			said := strings.TrimSuffix(m[1], "()")
			if !name.MatchString(said) || path.MatchString(said) || said == "go.mod" || strings.HasSuffix(said, ".json") {
				continue
			}
			parts := strings.Split(said, ".")
			for i := range parts[1:] {
				of, member := parts[i], parts[i+1]
				switch {
				case s.has(of, member, 3), s.packages[of][member]:
				case s.packages[of] == nil && s.members[of] == nil && (s.imported[of] || of == "tc"): // not ours; a test's variable
				default:
					t.Errorf("%s names %s: %s has no %s", doc, said, of, member)
				}
			}
		}
	}
}

// A comment that begins with the name of what it stands at has that name's letters: a declaration that becomes public
// takes its comment with it.
func TestCommentsBeginWithTheName(t *testing.T) {
	check := func(path, name string, doc *ast.CommentGroup) {
		first, _, _ := strings.Cut(doc.Text(), " ")
		if first != name && strings.EqualFold(first, name) && first != "A" {
			t.Errorf("%s: the comment of %s calls it %s", path, name, first)
		}
	}
	for path, f := range parseTree(t).parsed {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(path, d.Name.Name, d.Doc)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						check(path, spec.Name.Name, d.Doc)
						check(path, spec.Name.Name, spec.Doc)
					}
				}
			}
		}
	}
}

// goFile is a file's name in a comment, perhaps with folders before it.
var goFile = regexp.MustCompile(`[\w./*-]*\w+\.go\b`)

// A file that a comment names is there: in the folder of the comment, or, with a folder before its name, in the tree. A
// file that moved takes the pointers to it along.
func TestFilesInCommentsAreThere(t *testing.T) {
	s := parseTree(t)
	there := func(from, name string) bool {
		if !strings.Contains(name, "/") {
			return s.parsed[filepath.Join(filepath.Dir(from), name)] != nil
		}
		for path := range s.parsed {
			if strings.HasSuffix(path, "/"+name) {
				return true
			}
		}
		return false
	}
	for path, f := range s.parsed {
		for _, group := range f.Comments {
			text := group.Text()
			for _, name := range goFile.FindAllString(text, -1) {
				if !there(path, name) {
					t.Errorf("%s: a comment names %s, which is not there", path, name)
				}
			}
		}
	}
}
