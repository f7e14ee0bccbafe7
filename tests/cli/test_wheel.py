import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_themes_and_the_style_sheet(tmp_path: Path) -> None:
    """An installed program finds beside its modules what a checkout has beside its folders."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    assert {f"tui/themes/{name}.toml" for name in ("night", "day", "ansi", "mono")} <= names
    assert "tui/app.tcss" in names
    code = "import tui.themes; print(tui.themes.load_theme('night').name, tui.themes.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"night {tmp_path}/installed/tui/themes.py\n"
