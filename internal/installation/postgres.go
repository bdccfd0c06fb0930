package installation

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/bctl/bctl/migrations"
)

//go:embed roles.sql
var rolesText string

//go:embed postgresql.conf
var postgresText string

var postgresTemplates = func() *template.Template {
	t := template.New("").Option("missingkey=error").Funcs(template.FuncMap{"ident": quoteIdent, "literal": quoteLiteral, "setting": quoteSetting})
	template.Must(t.New("roles.sql").Parse(rolesText))
	return template.Must(t.New("postgresql.conf").Parse(postgresText))
}()

// postgresFiles returns the configuration of the index's database server. Only holders of a
// certificate of a live generation can connect, over TLS, each as the role of its identity. There
// are no passwords.
func postgresFiles(p *Plan) ([]File, error) {
	schema, err := migrations.Version(migrations.Postgres)
	if err != nil {
		return nil, err
	}
	grants, err := migrations.Grants(p.Name)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range p.Identities() {
		if i.Role.usesIndex() {
			names = append(names, i.Name())
		}
	}
	data := map[string]any{
		"Name": p.Name, "Database": p.Postgres.Name, "Port": p.Postgres.Port, "Listen": p.listenPostgres(), "Schema": schema, "Grants": grants,
		"Setting": migrations.RolesSetting, "Version": migrations.SelectVersion, "Identities": names,
		"CA": p.place("postgres/ca.pem"), "Cert": p.place("postgres/server.pem"), "Key": p.place("postgres/server.key"),
		"HBA": p.place("postgres/pg_hba.conf"), "Ident": p.place("postgres/pg_ident.conf"), "Conf": p.place("postgres/postgresql.conf"),
	}
	for _, role := range databaseRoles {
		data[string(role)] = p.databaseRole(role)
	}
	files := []File{
		{Path: "postgres/pg_hba.conf", Data: []byte(p.hba())},
		{Path: "postgres/pg_ident.conf", Data: []byte(p.ident())},
	}
	for _, name := range []string{"roles.sql", "postgresql.conf"} {
		var text strings.Builder
		if err := postgresTemplates.ExecuteTemplate(&text, name, data); err != nil {
			return nil, fmt.Errorf("postgres/%s: %w", name, err)
		}
		files = append(files, File{Path: "postgres/" + name, Data: []byte(text.String())})
	}
	return files, nil
}

// listenPostgres returns the addresses on which the server listens. A trial on one machine uses the
// loopback interface if the server's name is an address of it.
func (p *Plan) listenPostgres() string {
	if p.trial(p.Postgres.Host) {
		return p.Postgres.Host
	}
	return "*"
}

// databaseRole returns the Postgres role for a role.
func (p *Plan) databaseRole(role Role) string { return p.Name + "_" + string(role) }

func (p *Plan) hba() string {
	var text strings.Builder
	text.WriteString(`# Written by bctl deploy. The first line that matches a connection applies, and a connection that matches none is
# refused: one without TLS, and one to the database without a certificate of the installation's authority.
#
# The server's administrator connects on the machine itself, as its user postgres.
local all postgres peer
`)
	for _, role := range databaseRoles {
		fmt.Fprintf(&text, "hostssl %s %s all cert clientcert=verify-full map=%s\n",
			quoteIdent(p.Postgres.Name), quoteIdent(p.databaseRole(role)), quoteIdent(p.Name))
	}
	fmt.Fprintf(&text, `
# A standby, if the administrator has made this role for it: with its password, over TLS.
hostssl replication %s all scram-sha-256
`, quoteIdent(p.Name+"_standby"))
	return text.String()
}

func (p *Plan) ident() string {
	var text strings.Builder
	text.WriteString(`# Written by bctl deploy: the role for each certificate. A generation that is not listed is refused. The server reads
# this file again on pg_ctl reload, systemctl reload postgresql, or SELECT pg_reload_conf().
`)
	for _, i := range p.Identities() {
		if i.Role.usesIndex() {
			fmt.Fprintf(&text, "%s %s %s\n", quoteIdent(p.Name), quoteIdent(i.Name()), quoteIdent(p.databaseRole(i.Role)))
		}
	}
	return text.String()
}

// quoteIdent quotes an SQL identifier. In pg_hba.conf and pg_ident.conf quoting removes the special
// meaning of words.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteLiteral(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` }

// quoteSetting quotes a value of postgresql.conf, in which a backslash is special too.
func quoteSetting(s string) string { return quoteLiteral(strings.ReplaceAll(s, `\`, `\\`)) }
