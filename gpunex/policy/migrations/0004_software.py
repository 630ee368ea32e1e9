from django.db import migrations, models


class Migration(migrations.Migration):
    """Least versions of the host's software (specification K), which were fixed in the code."""

    dependencies = [
        ("policy", "0003_money"),
    ]

    operations = [
        migrations.AddField(
            model_name="policy",
            name="cuda_least",
            field=models.CharField(default="12.4", max_length=12, verbose_name="driver's CUDA version at least"),
        ),
        migrations.AddField(
            model_name="policy",
            name="docker_least",
            field=models.CharField(default="25", max_length=20, verbose_name="Docker at least"),
        ),
        migrations.AddField(
            model_name="policy",
            name="runc_accepted",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="a distribution's own builds into which the fixes were carried back, as runc --version names them",
                verbose_name="older runc versions that are accepted",
            ),
        ),
        migrations.AddField(
            model_name="policy",
            name="runc_least",
            field=models.CharField(
                default="1.2.8 1.3.3",
                help_text="one version for each release line",
                max_length=60,
                verbose_name="runc at least",
            ),
        ),
        migrations.AddField(
            model_name="policy",
            name="toolkit_least",
            field=models.CharField(default="1.17.8", max_length=20, verbose_name="NVIDIA Container Toolkit at least"),
        ),
    ]
