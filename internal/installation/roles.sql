-- Made by bctl deploy: the roles and the database of the index. As the server's superuser:
--
--   psql -X -v ON_ERROR_STOP=1 -d postgres -f roles.sql
--
-- It may be run at any time, and again: before bctl init or after it, after an upgrade, after a rotation. bctl init and bctl
-- migrate, run as {{.admin}}, set the privileges of tables anew, so that it need not be run after these.
--
-- Sessions of certificates that are accepted no longer are ended: so run it once more after bctl deploy retire, when
-- the server has read its new pg_ident.conf.

\set ON_ERROR_STOP on

-- Nobody has a password, and nobody but {{.admin}} owns anything.
DO $roles$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[{{literal .admin}}, {{literal .committer}}, {{literal .walker}}, {{literal .reader}}, {{literal .operator}}, {{literal .monitor}}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I', wanted);
        END IF;
        EXECUTE format('ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD NULL', wanted);
    END LOOP;
END $roles$;

SELECT format('CREATE DATABASE %I OWNER %I TEMPLATE template0 ENCODING ''UTF8''', {{literal .Database}}, {{literal .admin}})
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = {{literal .Database}}) \gexec

ALTER DATABASE {{ident .Database}} OWNER TO {{ident .admin}};
ALTER DATABASE {{ident .Database}} SET {{.Setting}} = {{literal .Name}};
REVOKE ALL ON DATABASE {{ident .Database}} FROM PUBLIC, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .monitor}};
GRANT CONNECT ON DATABASE {{ident .Database}} TO {{ident .committer}}, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .monitor}};
-- Committers write in bulk, by way of temporary tables.
GRANT TEMPORARY ON DATABASE {{ident .Database}} TO {{ident .committer}};

\connect {{ident .Database}}

BEGIN;

ALTER SCHEMA public OWNER TO {{ident .admin}};
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO {{ident .committer}}, {{ident .walker}}, {{ident .reader}}, {{ident .operator}}, {{ident .monitor}};

-- An index that was made by somebody else becomes {{.admin}}'s.
DO $owner$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace
        AND c.relkind IN ('r', 'p') AND pg_get_userbyid(c.relowner) <> {{literal .admin}} LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', found.name, {{literal .admin}});
    END LOOP;
    FOR found IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
        AND pg_get_userbyid(p.proowner) <> {{literal .admin}} LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', found.name, {{literal .admin}});
    END LOOP;
END $owner$;

-- Functions by which whoever may connect could do more than read: advisory locks, which would keep committers from
-- claiming work, and large objects and messages in the log, which take space.
DO $functions$
DECLARE
    found record;
BEGIN
    FOR found IN SELECT p.oid::regprocedure AS name, p.proname LIKE '%advisory%' AS lock FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND (p.proname LIKE 'pg\_%advisory%'
            OR p.proname IN ('lo_creat', 'lo_create', 'lo_from_bytea', 'pg_logical_emit_message')) LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', found.name);
        IF found.lock THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I, %I', found.name, {{literal .committer}}, {{literal .admin}});
        END IF;
    END LOOP;
END $functions$;

COMMIT;

-- What each may do in the tables of this version, where they are there.
SELECT to_regclass('public.goose_db_version') IS NOT NULL AS made \gset
\if :made
SELECT ({{.Version}}) = {{.Schema}} AS current \gset
\if :current
BEGIN;
{{.Grants}}
COMMIT;
\else
\echo 'The schema of the index is not that of this bctl: run bctl migrate, or use the bctl that it is of.'
\endif
\endif

-- Who is still there with a certificate that is accepted no longer.
SELECT pg_terminate_backend(pid) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
WHERE usename IN ({{literal .admin}}, {{literal .committer}}, {{literal .walker}}, {{literal .reader}}, {{literal .operator}}, {{literal .monitor}})
    AND client_dn <> ALL (ARRAY[{{range $i, $name := .Identities}}{{if $i}}, {{end}}left({{literal (print "/CN=" $name)}}, 63){{end}}]::text[]);
